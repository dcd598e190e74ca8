// MPI on device buffers, alone and by turns with NCCL: run under mpiexec, one rank a process and a device.
// On real devices where there are any, else on the stand-ins (CMakeLists.txt says which).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <isthmus/mpi.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;

constexpr std::uint64_t threshold = 32 << 10;
constexpr std::uint64_t piece = 8 << 10;  // small, so that the tests cross it

// Below the threshold MPI, from there on NCCL; `always` sends everything over MPI.
std::string write_config(const char* name, bool always) {
  const std::string path = ::testing::TempDir() + name + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << "threshold = " << (always ? -1 : static_cast<long long>(threshold))
                      << "\n[backend.hybrid]\npiece_bytes = " << piece << "\n";
  return path;
}

member make_member(bool always) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string config = write_config("hybrid", always);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_CUDA, rank};
  options.config_path = config.c_str();
  options.timeout_s = 60;
  member self{rank, rank, nullptr, std::make_unique<gpu::stream>(rank)};
  self.communicator = isthmus::mpi::create(MPI_COMM_WORLD, &options);
  std::remove(config.c_str());
  return self;
}

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void release(member& self) {
  self.queue->synchronize();
  EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << gpu::last_error();
}

std::string backend_for(const member& self, std::uint64_t bytes) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_UINT8;
  operation.count = bytes;
  std::vector<char> text(1 << 16);
  isthmus_communicator_explain(self.communicator, &operation, text.data(), text.size(), nullptr);
  const std::string json = text.data();
  const auto at = json.find("\"backend\"");
  const auto start = json.find('"', json.find(':', at)) + 1;
  return json.substr(start, json.find('"', start) - start);
}

TEST(hybrid, threshold_divides_device_messages_between_mpi_and_nccl) {
  member self = make_member(false);
  EXPECT_EQ(backend_for(self, threshold - 1), "hybrid");
  EXPECT_EQ(backend_for(self, threshold), "nccl");
  release(self);
}

TEST(hybrid, every_collective_over_mpi_is_what_the_oracle_allows) {
  member self = make_member(true);
  EXPECT_EQ(backend_for(self, 1 << 20), "hybrid");
  for (const gpu::table_row& row : gpu::table())
    for (const std::uint64_t count : {0, 1, 1003, 30000})  // below and above the piece and the pinned buffers
      for (const auto type : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT16})
        for (const auto op : {ISTHMUS_SUM, ISTHMUS_AVG})
          for (const bool in_place : {false, true}) {
            if ((in_place && !row.can_be_in_place) || (!row.reduces && op != ISTHMUS_SUM)) continue;
            const scenario what{
                gpu::make_shape(row.collective, world_size(), row.rooted ? world_size() - 1 : 0, count), type,
                op, in_place, count + 1};
            rank_call call(what, self);
            ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << row.name << ": " << gpu::last_error();
            self.queue->synchronize();
            ASSERT_EQ(call.error(), "") << row.name << " of " << count << " on rank " << self.rank;
          }
  release(self);
}

// Small messages go over MPI and large ones over NCCL, in a random order that all ranks share, while each
// rank is late at moments of its own. Sums are integers: one lost or doubled contribution shows.
TEST(hybrid, alternates_with_nccl_10000_times_under_skew) {
  member self = make_member(false);
  const int size = world_size();
  const std::size_t small = 64, large = threshold / sizeof(std::int32_t);
  gpu::buffer data((small + large) * sizeof(std::int32_t));
  auto* const numbers = reinterpret_cast<std::int32_t*>(data.data());
  std::vector<std::int32_t> host(small + large);
  std::mt19937 shared(7), own(static_cast<unsigned>(100 + self.rank));
  int over_mpi = 0, pending = 0;
  const auto start = [&] {
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>(i) + self.rank;
    data.write(std::as_bytes(std::span(host)), *self.queue);
  };
  std::vector<std::int32_t> factors{0, 0};  // how often each part was reduced since it was written
  const auto check = [&] {
    const std::vector<std::byte> bytes = data.read(*self.queue);
    const auto* got = reinterpret_cast<const std::int32_t*>(bytes.data());
    for (std::size_t i = 0; i < host.size(); ++i) {
      // The first reduction gives size * i + sum of ranks; each later one multiplies by size, modulo 2^32.
      std::uint32_t expected = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(self.rank);
      for (int round = 0; round < factors[i < small ? 0 : 1]; ++round)
        expected = round == 0 ? static_cast<std::uint32_t>(size) * static_cast<std::uint32_t>(i) +
                                    static_cast<std::uint32_t>(size * (size - 1) / 2)
                              : expected * static_cast<std::uint32_t>(size);
      ASSERT_EQ(static_cast<std::uint32_t>(got[i]), expected) << "element " << i;
    }
    factors = {0, 0};
  };
  start();
  for (int i = 0; i < 10000; ++i) {
    const bool is_small = shared() % 2 == 0;
    if (own() % 997 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::int32_t* const part = is_small ? numbers : numbers + small;
    ASSERT_EQ(isthmus_allreduce(part, part, is_small ? small : large, ISTHMUS_INT32, ISTHMUS_SUM,
                                self.communicator, self.queue->native()),
              ISTHMUS_SUCCESS)
        << gpu::last_error();
    ++factors[is_small ? 0 : 1];
    over_mpi += is_small ? 1 : 0;
    if (++pending < 40 && i + 1 < 10000) continue;
    pending = 0;
    check();
    if (::testing::Test::HasFatalFailure()) break;
    start();
  }
  EXPECT_GT(over_mpi, 4000);
  EXPECT_LT(over_mpi, 6000);
  release(self);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (level < MPI_THREAD_MULTIPLE || gpu::device_count() < world_size()) {
    std::puts("SKIPPED: this needs MPI_THREAD_MULTIPLE and a device for every rank");
    MPI_Finalize();
    return 77;
  }
  const int code = RUN_ALL_TESTS();
  MPI_Finalize();
  return code;
}
