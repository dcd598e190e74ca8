// Exit code 77: no CUDA device.
#include <cstdio>

#include "test_ranks.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (gpu::device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  return gpu::test_ranks::run_all_tests(argc, argv, ISTHMUS_PLATFORM_CUDA, gpu::device_count());
}
