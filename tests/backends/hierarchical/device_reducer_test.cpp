// Several devices of one platform on a node reduce among themselves first: results, plan, cases that use host
// staging, and a killed rank. Devices and their library are stand-ins.
#include <isthmus/tools.h>

#include <csignal>

#include "run_cases.hpp"

namespace {

using hierarchical_test::explain_call;
using hierarchical_test::run_all_cases;
using hierarchical_test::run_on_nodes;
using hierarchical_test::run_settings;
using hierarchical_test::test_rank;

constexpr auto cuda = ISTHMUS_PLATFORM_CUDA, hip = ISTHMUS_PLATFORM_HIP, host = ISTHMUS_PLATFORM_HOST;

run_settings settings_for_devices(const std::vector<isthmus_platform>& platforms,
                                  const std::vector<int>& ordinals) {
  run_settings settings = hierarchical_test::settings_for_devices(platforms);
  settings.ordinals = ordinals;
  return settings;
}

// The backends of the plan steps of an allreduce on this rank.
std::vector<std::string> steps_of(const test_rank& self) {
  std::vector<std::string> backends;
  const auto plan = explain_call(self, ISTHMUS_ALLREDUCE).at("plan");
  for (const auto& step : plan) backends.push_back(step.at("backend").get<std::string>());
  return backends;
}

using names = std::vector<std::string>;

// All results are correct, and an allreduce on rank 0 has these steps.
void expect_sums(const std::vector<std::string>& nodes, const std::vector<isthmus_platform>& platforms,
                 const std::vector<int>& ordinals, const names& steps, const std::string& options = "") {
  run_settings settings = settings_for_devices(platforms, ordinals);
  settings.config += options;
  run_on_nodes(nodes, settings, [=](const test_rank& self) {
    const auto index = static_cast<std::size_t>(self.number);
    run_all_cases(self, platforms[index], ordinals[index]);
    if (self.number == 0) {
      EXPECT_EQ(steps_of(self), steps);
    }
  });
}

TEST(device_reducer, two_devices_and_two_host_ranks) {
  expect_sums({"a", "a", "a", "a"}, {cuda, cuda, host, host}, {0, 1, 0, 0}, {"nccl", "shm", "nccl"});
}

TEST(device_reducer, nodes_of_different_sizes) {
  expect_sums({"a", "a", "a", "a"}, {cuda, host, cuda, cuda}, {0, 0, 1, 2}, {"nccl", "shm", "nccl"});
}

TEST(device_reducer, interleaved_ranks_of_two_platforms) {
  expect_sums({"a", "a", "a", "a"}, {cuda, hip, cuda, hip}, {0, 0, 1, 1}, {"nccl", "shm", "nccl"});
}

TEST(device_reducer, devices_of_several_nodes) {
  expect_sums({"a", "a", "b", "b"}, {cuda, cuda, cuda, cuda}, {0, 1, 0, 1}, {"nccl", "hierarchical", "nccl"});
}

TEST(device_reducer, shared_device_uses_host_staging) {
  expect_sums({"a", "a", "a", "a"}, {cuda, cuda, host, host}, {0, 0, 0, 0}, {"shm"});
}

TEST(device_reducer, option_allows_a_shared_device) {
  expect_sums({"a", "a", "a", "a"}, {cuda, host, cuda, host}, {0, 0, 0, 0}, {"nccl", "shm", "nccl"},
              "intra_node = \"nccl\"\n[backend.nccl]\nshare_device = true\n");
}

TEST(device_reducer, rounded_types_use_host_staging) {
  run_on_nodes({"a", "a", "a"}, settings_for_devices({cuda, cuda, host}, {0, 1, 0}), [](const test_rank& self) {
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_BFLOAT16;
    operation.count = 1000;
    const auto plan =
        nlohmann::json::parse(hierarchical_test::text_of([&](char* text, std::size_t capacity,
                                                             std::size_t* required_bytes) {
          return isthmus_communicator_explain(self.communicator, &operation, text, capacity, required_bytes);
        })).at("plan");
    ASSERT_EQ(plan.size(), 1U) << plan;
    EXPECT_EQ(plan.at(0).at("backend"), "shm");
  });
}

// Enough elements for many chunks, so that some are on the device while others are in the inter-node phase.
TEST(device_reducer, killed_rank_is_named_on_all) {
  run_settings settings = settings_for_devices({cuda, cuda, host, host}, {0, 1, 0, 0});
  run_on_nodes(
      {"a", "a", "a", "a"}, settings,
      [](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        constexpr std::size_t elements = 100000;
        const hierarchical_test::device_memory memory(self.number < 2 ? cuda : host, elements * sizeof(float),
                                                      self.number < 2 ? self.number : 0);
        const auto sum = [&] {
          return isthmus_allreduce(memory.at(0), memory.at(0), elements, ISTHMUS_FLOAT32, ISTHMUS_MAX,
                                   self.communicator, nullptr);
        };
        for (int i = 0; i < 3; ++i) ASSERT_EQ(sum(), ISTHMUS_SUCCESS) << topology::last_error().message;
        self.sync.wait();
        if (self.number == 1) raise(SIGKILL);
        isthmus_status status = ISTHMUS_SUCCESS;
        while (status == ISTHMUS_SUCCESS) status = sum();
        const std::string text = topology::last_error().message;
        EXPECT_NE(text.find("rank 1"), std::string::npos) << self.number << ": " << text;
      },
      1);
}

}  // namespace
