// Starts the world, runs the tests in it, and ends it. Exit code 77: nothing to run on.
#include <gtest/gtest.h>

#include <cstdio>

#include "world.hpp"

namespace {

class environment : public ::testing::Environment {
 public:
  void TearDown() override { gpu::world::stop(); }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (gpu::device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  try {
    gpu::world::start(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cannot start: %s\n", failure.what());
    return 1;
  }
  ::testing::AddGlobalTestEnvironment(new environment);
  return RUN_ALL_TESTS();
}
