// The buffers that MPI gets with buffers = "device", on an MPI that reports support for device buffers. The MPI
// table is the real one and records the pointers. Runs on stand-ins only, whose device memory is host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <isthmus/mpi.hpp>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device_rank.hpp"
#include "gpu/scenario.hpp"
#include "standin.h"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using mpi_device_test::world_size;

// The pointers that the backend's thread passed to MPI since the last `clear`.
struct record {
  std::mutex mutex;
  std::vector<const void*> pointers;
  isthmus_mpi_table real{};

  static record& get() {
    static auto* const only = new record;
    return *only;
  }
  void add(const isthmus_operation& operation) {
    const std::lock_guard lock(mutex);
    pointers.push_back(operation.send_buf);
    pointers.push_back(operation.recv_buf);
  }
  void clear() {
    const std::lock_guard lock(mutex);
    pointers.clear();
  }
  bool has(const void* pointer) {
    const std::lock_guard lock(mutex);
    return pointer != nullptr && std::find(pointers.begin(), pointers.end(), pointer) != pointers.end();
  }
};

const isthmus_mpi_table* recording_table() {
  static const isthmus_mpi_table table = [] {
    isthmus_mpi_table recording = isthmus::mpi::table(MPI_COMM_WORLD);
    record::get().real = recording;
    recording.device_platforms = 1U << ISTHMUS_PLATFORM_CUDA;
    recording.collective = [](isthmus_mpi_comm comm, const isthmus_operation* operation) {
      record::get().add(*operation);
      return record::get().real.collective(comm, operation);
    };
    recording.start = [](isthmus_mpi_comm comm, const isthmus_operation* operation, void** request) {
      record::get().add(*operation);
      return record::get().real.start(comm, operation, request);
    };
    return recording;
  }();
  return &table;
}

// The table of an MPI without support for device buffers.
const isthmus_mpi_table* no_devices_table() {
  static const isthmus_mpi_table table = [] {
    isthmus_mpi_table result = *recording_table();
    result.device_platforms = 0;
    return result;
  }();
  return &table;
}

// False if Isthmus reduces or divides on the host, or if the MPI table would copy there.
bool passes_device_buffers(const gpu::table_row& row, const scenario& test_case) {
  if (row.reduces && (test_case.datatype != ISTHMUS_FLOAT32 || test_case.op != ISTHMUS_SUM)) return false;
  return !test_case.in_place ||
         (row.collective != ISTHMUS_REDUCE_SCATTER && row.collective != ISTHMUS_REDUCE_SCATTERV &&
          row.collective != ISTHMUS_ALLTOALL && row.collective != ISTHMUS_ALLTOALLV);
}

// Whether MPI got a buffer of the call; empty if this rank has none (empty blocks).
std::optional<bool> passed_own_buffers(const rank_call& call) {
  std::optional<bool> has_own_buffer;
  for (const isthmus_operation& operation : call.operations())
    for (const void* pointer : {operation.send_buf, static_cast<const void*>(operation.recv_buf)})
      if (pointer != nullptr) has_own_buffer = has_own_buffer.value_or(false) || record::get().has(pointer);
  return has_own_buffer;
}

TEST(device_buffers, are_passed_to_mpi_if_it_can_reduce_them) {
  member self = mpi_device_test::make_member({.buffers = "device"}, recording_table());
  int checked = 0;
  for (const gpu::table_row& row : gpu::table())
    for (const std::uint64_t count : {1, 1003, 30000})
      for (const auto type : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT16})
        for (const auto op : {ISTHMUS_SUM, ISTHMUS_AVG})
          for (const bool in_place : {false, true}) {
            if ((in_place && !row.can_be_in_place) || (!row.reduces && op != ISTHMUS_SUM)) continue;
            const scenario test_case{
                gpu::make_shape(row.collective, world_size(), row.rooted ? world_size() - 1 : 0, count), type,
                op, in_place, count + 1};
            rank_call call(test_case, self);
            record::get().clear();
            ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << row.name << ": " << gpu::last_error();
            self.queue->synchronize();
            ASSERT_EQ(call.error(), "") << row.name << " of " << count << " on rank " << self.rank;
            const auto has_own_buffer = passed_own_buffers(call);
            EXPECT_TRUE(!has_own_buffer || *has_own_buffer == passes_device_buffers(row, test_case))
                << row.name << " of " << count << " of type " << type << ", operation " << op
                << (in_place ? ", in place" : "") << " on rank " << self.rank;
            checked += has_own_buffer ? 1 : 0;
          }
  EXPECT_GT(checked, 200);
  mpi_device_test::release(self);
}

TEST(device_buffers, explain_reports_the_buffer_mode) {
  for (const char* buffers : {"device", "staged", "auto"}) {
    member self = mpi_device_test::make_member({.buffers = buffers}, recording_table());
    const std::string text = mpi_device_test::explain_call(self, 64);
    EXPECT_EQ(text.find(", on device buffers") != std::string::npos, std::string(buffers) != "staged") << text;
    EXPECT_EQ(text.find(", on copies in pinned memory") != std::string::npos, std::string(buffers) == "staged")
        << text;
    mpi_device_test::release(self);
  }
}

TEST(device_buffers, auto_mode_stages_without_mpi_support) {
  member self = mpi_device_test::make_member({.buffers = "auto"}, no_devices_table());
  EXPECT_EQ(mpi_device_test::backend_for(self, 64), "mpi");
  const std::string text = mpi_device_test::explain_call(self, 64);
  EXPECT_NE(text.find(", on copies in pinned memory"), std::string::npos) << text;
  mpi_device_test::release(self);
}

// MPI's copies may wait for such streams, and therefore for the stream that waits for MPI.
TEST(device_buffers, default_stream_is_refused) {
  member self = mpi_device_test::make_member({.buffers = "device"}, recording_table());
  gpu::buffer data(4);
  EXPECT_EQ(
      isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, nullptr),
      ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(gpu::last_error().find("legacy default stream"), std::string::npos) << gpu::last_error();
  mpi_device_test::release(self);
}

TEST(device_buffers, default_stream_is_staged_in_auto_mode) {
  member self = mpi_device_test::make_member({.buffers = "auto"}, recording_table());
  gpu::buffer data(sizeof(float));
  const float own = static_cast<float>(self.rank + 1);
  data.write(std::as_bytes(std::span(&own, 1)), *self.queue);
  record::get().clear();
  ASSERT_EQ(
      isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, nullptr),
      ISTHMUS_SUCCESS)
      << gpu::last_error();
  EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS);  // completes the operation
  self.communicator = nullptr;
  EXPECT_FALSE(record::get().has(data.data()));
  float result = 0;
  std::memcpy(&result, data.read(*self.queue).data(), sizeof result);
  EXPECT_EQ(result, static_cast<float>(world_size() * (world_size() + 1) / 2));
}

// A rank that does not use the counts of a collective may pass any pointer.
TEST(device_buffers, unused_counts_are_not_read) {
  member self = mpi_device_test::make_member({.buffers = "staged"}, recording_table());
  const auto size = static_cast<std::size_t>(world_size());
  gpu::buffer send(sizeof(float)), recv(size * sizeof(float));
  std::vector<std::uint64_t> counts(size, 1), displs(size);
  for (std::size_t i = 0; i < size; ++i) displs[i] = i;
  const auto* const invalid = reinterpret_cast<const std::uint64_t*>(sizeof(std::uint64_t));
  const bool is_root = self.rank == 0;
  ASSERT_EQ(isthmus_gatherv(send.data(), 1, recv.data(), is_root ? counts.data() : invalid,
                            is_root ? displs.data() : invalid, ISTHMUS_FLOAT32, 0, self.communicator,
                            self.queue->native()),
            ISTHMUS_SUCCESS)
      << gpu::last_error();
  self.queue->synchronize();
  mpi_device_test::release(self);
}

TEST(device_buffers, are_refused_without_mpi_support) {
  member self = mpi_device_test::make_member({.buffers = "device"}, no_devices_table());
  const std::string text = mpi_device_test::explain_call(self, 64);
  EXPECT_NE(text.find("does not report support for device buffers of this platform"), std::string::npos)
      << text;
  EXPECT_EQ(mpi_device_test::backend_for(self, 64), "nccl");
  mpi_device_test::release(self);
}

TEST(device_buffers, unknown_mode_is_refused) {
  member self = mpi_device_test::make_member({.buffers = "gpu"}, recording_table());
  const std::string text = mpi_device_test::explain_call(self, 64);
  EXPECT_NE(text.find("backend.mpi.buffers = 'gpu' must be 'auto', 'staged' or 'device'"), std::string::npos)
      << text;
  mpi_device_test::release(self);
}

TEST(device_buffers, captured_stream_is_refused) {
  member self = mpi_device_test::make_member({}, recording_table());
  gpu::buffer data(4);
  standin_set_capturing(self.queue->native(), 1);
  EXPECT_EQ(isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator,
                              self.queue->native()),
            ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(gpu::last_error().find("mpi cannot be captured"), std::string::npos) << gpu::last_error();
  standin_set_capturing(self.queue->native(), 0);
  mpi_device_test::release(self);
}

// Sends one number from rank 1 to rank 0. The other ranks do nothing.
isthmus_status pass_number(const member& self, gpu::buffer& data) {
  if (self.rank > 1) return ISTHMUS_SUCCESS;
  const auto communicator = self.communicator;
  return self.rank == 1 ? isthmus_send(data.data(), 1, ISTHMUS_INT32, 0, communicator, self.queue->native())
                        : isthmus_recv(data.data(), 1, ISTHMUS_INT32, 1, communicator, self.queue->native());
}

TEST(device_buffers, message_ends_if_the_peer_is_stopped) {
  using namespace std::chrono_literals;
  member self = mpi_device_test::make_member({.timeout_s = 2}, recording_table());
  gpu::buffer data(sizeof(std::int32_t));
  pid_t peer = getpid();
  if (self.rank == 1) {
    MPI_Send(&peer, sizeof peer, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
    raise(SIGSTOP);
  } else if (self.rank == 0) {
    MPI_Recv(&peer, sizeof peer, MPI_BYTE, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    ASSERT_EQ(pass_number(self, data), ISTHMUS_SUCCESS) << gpu::last_error();
    isthmus_status status = ISTHMUS_SUCCESS;
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (status == ISTHMUS_SUCCESS && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(10ms);
      status = isthmus_communicator_async_error(self.communicator);
    }
    EXPECT_EQ(status, ISTHMUS_ERROR_TIMEOUT) << gpu::last_error();
    int failed_rank = -1;
    EXPECT_EQ(isthmus_last_error_ranks(&failed_rank, 1), 1U) << gpu::last_error();
    EXPECT_EQ(failed_rank, 1) << gpu::last_error();
    kill(peer, SIGCONT);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (self.rank == 0) return mpi_device_test::release(self);
  isthmus_communicator_destroy(self.communicator);  // may report the failure of rank 0
}

// The thread of the backend calls MPI after the call has returned. A failure releases the stream.
TEST(device_buffers, failure_in_mpi_is_an_asynchronous_error) {
  static isthmus_mpi_table failing_table = *recording_table();
  failing_table.collective = [](isthmus_mpi_comm, const isthmus_operation*) { return int{MPI_ERR_OTHER}; };
  member self = mpi_device_test::make_member({.buffers = "staged"}, &failing_table);
  gpu::buffer data(4);
  ASSERT_EQ(isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator,
                              self.queue->native()),
            ISTHMUS_SUCCESS)
      << gpu::last_error();
  self.queue->synchronize();
  isthmus_status status = ISTHMUS_SUCCESS;
  for (int i = 0; i < 1000 && status == ISTHMUS_SUCCESS; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    status = isthmus_communicator_async_error(self.communicator);
  }
  EXPECT_NE(status, ISTHMUS_SUCCESS);  // the failure of this rank or of another one
  EXPECT_NE(gpu::last_error().find("allreduce failed in"), std::string::npos) << gpu::last_error();
  mpi_device_test::release(self);
}

}  // namespace
