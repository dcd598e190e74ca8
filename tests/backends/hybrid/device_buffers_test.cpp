// What reaches MPI when the configuration says buffers = "device", on an MPI that says it takes them: its table
// is the real one, which records the pointers. Stand-ins only: their device memory is the host's.
#include <gtest/gtest.h>

#include <algorithm>
#include <isthmus/mpi.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/scenario.hpp"
#include "hybrid_rank.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using hybrid_test::world_size;

// The pointers that MPI was given since the last `clear`, by the backend's thread.
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
    isthmus_mpi_table made = isthmus::mpi::table(MPI_COMM_WORLD);
    record::get().real = made;
    made.device_platforms = 1U << ISTHMUS_PLATFORM_CUDA;
    made.collective = [](isthmus_mpi_comm comm, const isthmus_operation* operation) {
      record::get().add(*operation);
      return record::get().real.collective(comm, operation);
    };
    made.start = [](isthmus_mpi_comm comm, const isthmus_operation* operation, void** request) {
      record::get().add(*operation);
      return record::get().real.start(comm, operation, request);
    };
    return made;
  }();
  return &table;
}

// Not where Isthmus combines or divides on the host, nor where the table would copy there.
bool passes_device_buffers(const gpu::table_row& row, const scenario& what) {
  if (row.reduces && (what.datatype != ISTHMUS_FLOAT32 || what.op != ISTHMUS_SUM)) return false;
  return !what.in_place ||
         (row.collective != ISTHMUS_REDUCE_SCATTER && row.collective != ISTHMUS_REDUCE_SCATTERV &&
          row.collective != ISTHMUS_ALLTOALL && row.collective != ISTHMUS_ALLTOALLV);
}

// Whether MPI was given a buffer of the call; nothing where this rank has none (empty blocks).
std::optional<bool> passed_own_buffers(const rank_call& call) {
  std::optional<bool> got;
  for (const isthmus_operation& operation : call.operations())
    for (const void* pointer : {operation.send_buf, static_cast<const void*>(operation.recv_buf)})
      if (pointer != nullptr) got = got.value_or(false) || record::get().has(pointer);
  return got;
}

TEST(device_buffers, go_to_mpi_as_they_are_where_it_combines_them_itself) {
  member self = hybrid_test::make_member({.buffers = "device"}, recording_table());
  int checked = 0;
  for (const gpu::table_row& row : gpu::table())
    for (const std::uint64_t count : {1, 1003, 30000})
      for (const auto type : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT16})
        for (const auto op : {ISTHMUS_SUM, ISTHMUS_AVG})
          for (const bool in_place : {false, true}) {
            if ((in_place && !row.can_be_in_place) || (!row.reduces && op != ISTHMUS_SUM)) continue;
            const scenario what{
                gpu::make_shape(row.collective, world_size(), row.rooted ? world_size() - 1 : 0, count), type,
                op, in_place, count + 1};
            rank_call call(what, self);
            record::get().clear();
            ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << row.name << ": " << gpu::last_error();
            self.queue->synchronize();
            ASSERT_EQ(call.error(), "") << row.name << " of " << count << " on rank " << self.rank;
            const auto got = passed_own_buffers(call);
            EXPECT_TRUE(!got || *got == passes_device_buffers(row, what))
                << row.name << " of " << count << " of type " << type << ", operation " << op
                << (in_place ? ", in place" : "") << " on rank " << self.rank;
            checked += got ? 1 : 0;
          }
  EXPECT_GT(checked, 200);
  hybrid_test::release(self);
}

TEST(device_buffers, explain_says_what_mpi_gets) {
  for (const char* buffers : {"device", "staged"}) {
    member self = hybrid_test::make_member({.buffers = buffers}, recording_table());
    const std::string text = hybrid_test::explained(self, 64);
    EXPECT_EQ(text.find(", on device buffers") != std::string::npos, std::string(buffers) == "device") << text;
    EXPECT_EQ(text.find(", on copies in pinned memory") != std::string::npos, std::string(buffers) == "staged")
        << text;
    hybrid_test::release(self);
  }
}

// MPI's own copies may wait for such streams, and so for the held one.
TEST(device_buffers, streams_that_wait_for_the_default_stream_are_refused) {
  member self = hybrid_test::make_member({.buffers = "device"}, recording_table());
  gpu::buffer data(4);
  EXPECT_EQ(
      isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, nullptr),
      ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(gpu::last_error().find("legacy default stream"), std::string::npos) << gpu::last_error();
  hybrid_test::release(self);
}

TEST(device_buffers, are_not_given_to_an_mpi_that_does_not_say_that_it_takes_them) {
  static isthmus_mpi_table no_devices_table = *recording_table();
  no_devices_table.device_platforms = 0;
  member self = hybrid_test::make_member({.buffers = "device"}, &no_devices_table);
  const std::string text = hybrid_test::explained(self, 64);
  EXPECT_NE(text.find("does not say that it takes buffers of this platform"), std::string::npos) << text;
  EXPECT_EQ(hybrid_test::backend_for(self, 64), "nccl");
  hybrid_test::release(self);
}

TEST(device_buffers, the_option_must_be_known) {
  member self = hybrid_test::make_member({.buffers = "gpu"}, recording_table());
  const std::string text = hybrid_test::explained(self, 64);
  EXPECT_NE(text.find("backend.hybrid.buffers = 'gpu' is none of 'staged' and 'device'"), std::string::npos)
      << text;
  hybrid_test::release(self);
}

}  // namespace
