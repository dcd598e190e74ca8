// A device plan that can't be made gives back what it took, wherever it breaks off.
#include <gtest/gtest.h>

#include <string>

#include "place.hpp"
#include "standins/standin.h"
#include "world.hpp"

namespace fused_test {
namespace {

TEST(fused_leaks, a_plan_that_can_not_be_made_leaves_no_stream_event_or_memory) {
  if (platform() != ISTHMUS_PLATFORM_CUDA) GTEST_SKIP() << "the same code under other names";
  const isthmus_device device{platform(), 0};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  isthmus_communicator alone = nullptr;
  ASSERT_EQ(isthmus_communicator_create_all(1, &device, &options, &alone), ISTHMUS_SUCCESS)
      << last_error_text();
  use_device(0);
  isthmus_fused_description asked{};
  asked.struct_bytes = sizeof asked;
  asked.m = 16, asked.n = 8, asked.k = 0;  // nothing to multiply: zeros are allocated, too
  asked.input = ISTHMUS_FLOAT16, asked.output = ISTHMUS_FLOAT32;
  asked.flags = ISTHMUS_FUSED_TRACE;
  const std::string functions[] = {"cuStreamCreateWithPriority", "cuEventCreate", "cuMemAlloc_v2"};
  int failed = 0;
  for (const std::string& function : functions)
    for (int nth = 1; nth <= 8; ++nth) {
      const int streams = standin_live_streams(), events = standin_live_events();
      const std::size_t memory = standin_live_memory();
      const int before = standin_driver_calls(function.c_str());
      standin_fail_driver(function.c_str(), nth, 2);
      isthmus_fused_plan plan = nullptr;
      const bool made = isthmus_fused_plan_create(alone, &asked, &plan) == ISTHMUS_SUCCESS;
      const bool reached = standin_driver_calls(function.c_str()) - before >= nth;
      EXPECT_EQ(made, !reached) << function << " " << nth;
      failed += reached ? 1 : 0;
      if (made) {
        EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS) << last_error_text();
      }
      EXPECT_EQ(standin_live_streams(), streams) << function << " " << nth;
      EXPECT_EQ(standin_live_events(), events) << function << " " << nth;
      EXPECT_EQ(standin_live_memory(), memory) << function << " " << nth;
      if (!reached) {
        standin_fail_driver(function.c_str(), 1, 0);  // nothing is to fail any more
        break;
      }
    }
  EXPECT_GE(failed, 6) << "the test fails what it means to";
  EXPECT_EQ(isthmus_communicator_destroy(alone), ISTHMUS_SUCCESS);
}

}  // namespace
}  // namespace fused_test
