// `--platform hip` selects HIP communicators on the stand-ins. Exit code 77: no device.
#include <cstdio>
#include <string_view>

#include "test_ranks.hpp"

int main(int argc, char** argv) {
  using namespace fused_test;
  ::testing::InitGoogleTest(&argc, argv);
  if (device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  const char* const named = ::topology::find_argument(argc, argv, "--platform");
  if (named != nullptr && std::string_view(named) == "hip") use_platform(ISTHMUS_PLATFORM_HIP);
  return fused_test::test_ranks::run_all_tests(argc, argv, platform(),
                                               platform() == ISTHMUS_PLATFORM_HOST ? 3 : device_count());
}
