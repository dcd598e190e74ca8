// MPI on device buffers, alone and alternating with NCCL. Runs under mpiexec with one rank per process and
// device, on real devices if there are any, otherwise on stand-ins (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <isthmus/mpi.hpp>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device_rank.hpp"
#include "gpu/device.hpp"
#include "gpu/scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using mpi_device_test::all_over_mpi;
using mpi_device_test::backend_for;
using mpi_device_test::chunk_bytes;
using mpi_device_test::release;
using mpi_device_test::shorthand;
using mpi_device_test::threshold;
using mpi_device_test::two_rules;
using mpi_device_test::world_size;

member make_member(const std::string& rules) {
  return mpi_device_test::make_member({.rules = rules}, isthmus::mpi::persistent_table(MPI_COMM_WORLD));
}

TEST(mpi_devices, two_rules_select_between_mpi_and_nccl) {
  for (const std::string& rules : {two_rules, shorthand}) {
    member self = make_member(rules);
    EXPECT_EQ(backend_for(self, threshold - 1), "mpi") << rules;
    EXPECT_EQ(backend_for(self, threshold), "nccl") << rules;
    release(self);
  }
}

// A rule for the host does not choose the backend for devices, where it would cost a stream and buffers.
TEST(mpi_devices, other_rules_do_not_select_mpi) {
  for (const std::string rules : {"", "[[rule]]\nplatform = \"host\"\nuse = \"mpi\"\n"}) {
    member self = make_member(rules);
    const std::string backend = backend_for(self, 8);
    EXPECT_TRUE(backend == "nccl" || backend == "p2p") << rules << backend;
    const std::string text = mpi_device_test::explain_call(self, 8);
    EXPECT_NE(text.find("only if a rule of the configuration names mpi"), std::string::npos) << rules << text;
    release(self);
  }
}

TEST(mpi_devices, every_collective_matches_the_oracle) {
  member self = make_member(all_over_mpi);
  EXPECT_EQ(backend_for(self, 1 << 20), "mpi");
  for (const gpu::table_row& row : gpu::table())
    for (const std::uint64_t count : {0, 1, 1003, 30000})  // below and above chunk_bytes
      for (const auto type : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT16})
        for (const auto op : {ISTHMUS_SUM, ISTHMUS_AVG})
          for (const bool in_place : {false, true}) {
            if ((in_place && !row.can_be_in_place) || (!row.reduces && op != ISTHMUS_SUM)) continue;
            const scenario test_case{
                gpu::make_shape(row.collective, world_size(), row.rooted ? world_size() - 1 : 0, count), type,
                op, in_place, count + 1};
            rank_call call(test_case, self);
            ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << row.name << ": " << gpu::last_error();
            self.queue->synchronize();
            ASSERT_EQ(call.error(), "") << row.name << " of " << count << " on rank " << self.rank;
          }
  release(self);
}

// A rank with additional operations in its group must issue the same MPI calls for the collective as
// the other ranks.
TEST(mpi_devices, chunks_are_equal_inside_and_outside_groups) {
  member self = make_member(all_over_mpi);
  const std::size_t count = 5 * chunk_bytes / sizeof(float);
  const int size = world_size();
  gpu::buffer sum(count * sizeof(float)), message(4);
  const std::vector<float> ones(count, static_cast<float>(self.rank + 1));
  sum.write(std::as_bytes(std::span(ones)), *self.queue);
  message.write(std::as_bytes(std::span(ones).first(1)), *self.queue);
  const auto reduce = [&] {
    return isthmus_allreduce(sum.data(), sum.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator,
                             self.queue->native());
  };
  if (self.rank == 0) {
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    EXPECT_EQ(reduce(), ISTHMUS_SUCCESS) << gpu::last_error();
    EXPECT_EQ(isthmus_send(message.data(), 1, ISTHMUS_FLOAT32, 1, self.communicator, self.queue->native()),
              ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << gpu::last_error();
  } else {
    ASSERT_EQ(reduce(), ISTHMUS_SUCCESS) << gpu::last_error();
    if (self.rank == 1) {
      ASSERT_EQ(isthmus_recv(message.data(), 1, ISTHMUS_FLOAT32, 0, self.communicator, self.queue->native()),
                ISTHMUS_SUCCESS)
          << gpu::last_error();
    }
  }
  const std::vector<std::byte> bytes = sum.read(*self.queue), message_bytes = message.read(*self.queue);
  const auto* results = reinterpret_cast<const float*>(bytes.data());
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(results[i], static_cast<float>(size * (size + 1) / 2)) << i;
  if (self.rank == 1) {
    EXPECT_EQ(*reinterpret_cast<const float*>(message_bytes.data()), 1);
  }
  release(self);
}

// Small messages use MPI and large ones NCCL, in a random order that is equal on all ranks, while each rank is
// delayed at random times. The sums are integers, so a lost or duplicated contribution is visible. With more
// ranks than cores, the scheduler adds skew to every iteration, so a fifth of the iterations is enough.
TEST(mpi_devices, alternates_with_nccl_under_skew) {
  member self = make_member(two_rules);
  const int size = world_size();
  const int iterations = size > static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 10000;
  const std::size_t small = 64, large = threshold / sizeof(std::int32_t);
  gpu::buffer data((small + large) * sizeof(std::int32_t));
  auto* const numbers = reinterpret_cast<std::int32_t*>(data.data());
  std::vector<std::int32_t> host(small + large);
  std::mt19937 common_random(7), own(static_cast<unsigned>(100 + self.rank));
  int over_mpi = 0, pending = 0;
  const auto start = [&] {
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>(i) + self.rank;
    data.write(std::as_bytes(std::span(host)), *self.queue);
  };
  std::vector<std::int32_t> factors{0, 0};  // how often each part was reduced since it was written
  const auto check = [&] {
    const std::vector<std::byte> bytes = data.read(*self.queue);
    const auto* results = reinterpret_cast<const std::int32_t*>(bytes.data());
    for (std::size_t i = 0; i < host.size(); ++i) {
      // The first reduction gives size * i + sum of ranks; each later one multiplies by size, modulo 2^32.
      std::uint32_t expected = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(self.rank);
      for (int round = 0; round < factors[i < small ? 0 : 1]; ++round)
        expected = round == 0 ? static_cast<std::uint32_t>(size) * static_cast<std::uint32_t>(i) +
                                    static_cast<std::uint32_t>(size * (size - 1) / 2)
                              : expected * static_cast<std::uint32_t>(size);
      ASSERT_EQ(static_cast<std::uint32_t>(results[i]), expected) << "element " << i;
    }
    factors = {0, 0};
  };
  start();
  for (int i = 0; i < iterations; ++i) {
    const bool is_small = common_random() % 2 == 0;
    if (own() % 997 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::int32_t* const range = is_small ? numbers : numbers + small;
    ASSERT_EQ(isthmus_allreduce(range, range, is_small ? small : large, ISTHMUS_INT32, ISTHMUS_SUM,
                                self.communicator, self.queue->native()),
              ISTHMUS_SUCCESS)
        << gpu::last_error();
    ++factors[is_small ? 0 : 1];
    over_mpi += is_small ? 1 : 0;
    if (++pending < 40 && i + 1 < iterations) continue;
    pending = 0;
    check();
    if (::testing::Test::HasFatalFailure()) break;
    start();
  }
  EXPECT_GT(over_mpi, iterations * 2 / 5);
  EXPECT_LT(over_mpi, iterations * 3 / 5);
  release(self);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (level < MPI_THREAD_MULTIPLE || gpu::device_count() < world_size()) {
    std::puts("SKIPPED: needs MPI_THREAD_MULTIPLE and a device for every rank");
    MPI_Finalize();
    return 77;
  }
  const int code = RUN_ALL_TESTS();
  MPI_Finalize();
  return code;
}
