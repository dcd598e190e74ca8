// Starts the world, runs the tests in it, and ends it. Exit code 77: nothing to run on.
#include <gtest/gtest.h>

#include <cstdio>

#include "place.hpp"
#include "world.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (fused_test::device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  try {
    fused_test::world::start(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cannot start: %s\n", failure.what());
    return 1;
  }
  const int result = RUN_ALL_TESTS();
  fused_test::world::stop();
  return result != 0 || ::testing::Test::HasFailure() ? 1 : 0;
}
