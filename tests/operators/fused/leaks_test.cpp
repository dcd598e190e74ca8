// If creating a device plan fails at any point, it releases everything that it has acquired.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "place.hpp"
#include "standins/standin.h"
#include "test_ranks.hpp"

namespace fused_test {
namespace {

TEST(fused_leaks, failed_plan_creation_leaks_nothing) {
  if (platform() != ISTHMUS_PLATFORM_CUDA) GTEST_SKIP() << "the HIP code is the same";
  const isthmus_device device{platform(), 0};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  isthmus_communicator communicator = nullptr;
  ASSERT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator), ISTHMUS_SUCCESS)
      << last_error_text();
  use_device(0);
  isthmus_fused_description description{};
  description.struct_bytes = sizeof description;
  description.m = 16, description.n = 8,
  description.k = 0;  // nothing to multiply, so zeros are allocated as well
  description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
  description.flags = ISTHMUS_FUSED_TRACE;
  const std::string functions[] = {"cuStreamCreateWithPriority", "cuEventCreate", "cuMemAlloc_v2"};
  int failed = 0;
  for (const std::string& function : functions)
    for (int nth = 1; nth <= 8; ++nth) {
      const int streams = standin_live_streams(), events = standin_live_events();
      const std::size_t memory = standin_live_memory();
      const int previous_calls = standin_driver_calls(function.c_str());
      standin_fail_driver(function.c_str(), nth, 2);
      isthmus_fused_plan plan = nullptr;
      const bool is_created = isthmus_fused_plan_create(communicator, &description, &plan) == ISTHMUS_SUCCESS;
      const bool is_reached = standin_driver_calls(function.c_str()) - previous_calls >= nth;
      EXPECT_EQ(is_created, !is_reached) << function << " " << nth;
      failed += is_reached ? 1 : 0;
      if (is_created) {
        EXPECT_EQ(isthmus_fused_plan_destroy(plan), ISTHMUS_SUCCESS) << last_error_text();
      }
      EXPECT_EQ(standin_live_streams(), streams) << function << " " << nth;
      EXPECT_EQ(standin_live_events(), events) << function << " " << nth;
      EXPECT_EQ(standin_live_memory(), memory) << function << " " << nth;
      if (!is_reached) {
        standin_fail_driver(function.c_str(), 1, 0);  // no more injected failures
        break;
      }
    }
  EXPECT_GE(failed, 6) << "too few failures were injected";
  EXPECT_EQ(isthmus_communicator_destroy(communicator), ISTHMUS_SUCCESS);
}

TEST(fused_leaks, invalid_option_is_reported_on_all_ranks) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs two ranks in this process";
  const std::string path = testing::TempDir() + "fused_option.toml";
  std::ofstream(path) << "[backend.fused]\nlink_gbs = 0\n";
  const isthmus_device devices[] = {{platform(), 0}, {platform(), 1}};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = path.c_str();
  isthmus_communicator ranks[2];
  ASSERT_EQ(isthmus_communicator_create_all(2, devices, &options, ranks), ISTHMUS_SUCCESS) << last_error_text();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      use_device(rank);
      isthmus_fused_description description{};
      description.struct_bytes = sizeof description;
      description.m = 16, description.n = 8, description.k = 8;
      description.input = ISTHMUS_FLOAT16, description.output = ISTHMUS_FLOAT32;
      isthmus_fused_plan plan = nullptr;
      EXPECT_EQ(isthmus_fused_plan_create(ranks[rank], &description, &plan), ISTHMUS_ERROR_CONFIG);
      EXPECT_NE(std::string(last_error().message).find("link_gbs"), std::string::npos) << last_error_text();
    });
  for (std::thread& thread : threads) thread.join();
  for (isthmus_communicator rank : ranks) EXPECT_EQ(isthmus_communicator_destroy(rank), ISTHMUS_SUCCESS);
}

}  // namespace
}  // namespace fused_test
