// Starts the world, runs the tests in it, and ends it.
#include <gtest/gtest.h>

#include <cstdio>

#include "world.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
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
