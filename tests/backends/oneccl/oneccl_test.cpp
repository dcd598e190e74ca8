// oneCCL's CPU plug-in through the C API: one rank per process, SYCL queues as streams. Run with mpiexec.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <isthmus/mpi.hpp>
#include <map>
#include <string>

#include "gpu/device.hpp"
#include "gpu/scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;

member* own_member = nullptr;

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

member make_member() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string config = ::testing::TempDir() + "oneccl" + std::to_string(getpid()) + ".toml";
  std::ofstream(config) << "[[rule]]\nplatform = \"opencl\"\nuse = \"oneccl\"\n";
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_OPENCL, 0};
  options.config_path = config.c_str();
  options.timeout_s = 60;
  member self({rank, world_size(), 0});
  self.communicator = isthmus::mpi::create(MPI_COMM_WORLD, &options);
  std::remove(config.c_str());
  return self;
}

class oneccl : public ::testing::TestWithParam<gpu::table_row> {};

TEST_P(oneccl, matches_the_oracle) {
  const gpu::table_row& row = GetParam();
  for (const std::uint64_t count : {0, 1, 1003, 40000})
    for (const auto type : {ISTHMUS_FLOAT32, ISTHMUS_FLOAT64, ISTHMUS_BFLOAT16, ISTHMUS_INT32, ISTHMUS_UINT8})
      for (const auto op : {ISTHMUS_SUM, ISTHMUS_MAX}) {
        if (!row.reduces && op != ISTHMUS_SUM) continue;
        const scenario setup{
            gpu::make_shape(row.collective, world_size(), row.rooted ? world_size() - 1 : 0, count), type, op,
            false, count + 3};
        rank_call call(setup, *own_member);
        ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << row.name << " of " << count << ": " << gpu::last_error();
        own_member->queue->synchronize();
        ASSERT_EQ(call.error(), "") << row.name << " of " << count << " on rank " << own_member->rank;
      }
}

INSTANTIATE_TEST_SUITE_P(table, oneccl, ::testing::ValuesIn(gpu::table()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(oneccl_barrier, completes) {
  for (int i = 0; i < 5; ++i)
    ASSERT_EQ(isthmus_barrier(own_member->communicator, own_member->queue->native()), ISTHMUS_SUCCESS)
        << gpu::last_error();
  own_member->queue->synchronize();
}

TEST(oneccl_limits, unsupported_datatype_is_refused_with_reason) {
  const std::int32_t value = 1;
  std::int32_t sum = 0;
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT8_E4M3;
  operation.count = 1;
  operation.send_buf = &value;
  operation.recv_buf = &sum;
  operation.stream = own_member->queue->native();
  EXPECT_EQ(isthmus_enqueue(own_member->communicator, &operation), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(gpu::last_error().find("8-bit floating"), std::string::npos) << gpu::last_error();
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int code = 1;
  try {
    member self = make_member();
    own_member = &self;
    code = RUN_ALL_TESTS();
    self.queue->synchronize();
    if (isthmus_communicator_destroy(self.communicator) != ISTHMUS_SUCCESS) code = 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cannot start: %s\n", failure.what());
  }
  MPI_Finalize();
  return code;
}
