// Ranks on devices of several platforms in one communicator, and devices that are alone on their nodes: every
// collective against the oracle, bit-identical results on all ranks, and unsupported cases. Devices are
// stand-ins, or real for CUDA.
#include <nlohmann/json.hpp>
#include <sstream>

#include "run_cases.hpp"

namespace {

using hierarchical_test::run_all_cases;
using hierarchical_test::run_on_nodes;
using hierarchical_test::settings_for_devices;
using hierarchical_test::test_rank;

// The platforms of the four ranks: TEST_PLATFORMS="cuda host hip level_zero".
const std::vector<isthmus_platform> mixed = [] {
  const char* const text = std::getenv("TEST_PLATFORMS");
  std::istringstream words(text == nullptr ? "cuda host hip host" : text);
  std::vector<isthmus_platform> platforms;
  for (std::string word; words >> word;)
    for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
      if (word == isthmus_platform_name(static_cast<isthmus_platform>(i)))
        platforms.push_back(static_cast<isthmus_platform>(i));
  return platforms;
}();

TEST(mixed, every_collective_is_correct_and_bit_identical) {
  run_on_nodes({"a", "a", "a", "a"}, settings_for_devices(mixed), [](const test_rank& self) {
    run_all_cases(self, mixed[static_cast<std::size_t>(self.number)]);
  });
}

TEST(mixed, collectives_are_correct_on_several_nodes) {
  run_on_nodes({"a", "a", "b", "b"}, settings_for_devices(mixed), [](const test_rank& self) {
    run_all_cases(self, mixed[static_cast<std::size_t>(self.number)]);
  });
}

TEST(devices, alone_on_their_nodes_use_host_staging) {
  auto settings = settings_for_devices(std::vector(4, ISTHMUS_PLATFORM_CUDA));
  // Disable NCCL: it also works across nodes, and it refuses ranks that share a GPU.
  settings.prepare = [](int) { setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1); };
  run_on_nodes({"a", "b", "c", "d"}, settings,
               [](const test_rank& self) { run_all_cases(self, ISTHMUS_PLATFORM_CUDA); });
}

TEST(mixed, explain_lists_host_staging) {
  run_on_nodes({"a", "a", "a", "a"}, settings_for_devices(mixed), [](const test_rank& self) {
    const auto explanation = hierarchical_test::explain_call(self, ISTHMUS_ALLREDUCE);
    EXPECT_EQ(explanation.at("backend"), "hierarchical");
    const auto& plan = explanation.at("plan");
    if (std::getenv("TEST_SHARE_DEVICE") == nullptr) {
      EXPECT_EQ(plan.at(0).at("subcommunicator"), "host staging");
      EXPECT_EQ(plan.at(0).at("backend"), "shm") << explanation;
    } else {
      const bool is_device = mixed[static_cast<std::size_t>(self.number)] == ISTHMUS_PLATFORM_CUDA;
      EXPECT_EQ(plan.at(0).at("backend"), is_device ? "nccl" : "shm") << explanation;
      EXPECT_TRUE(plan.at(1).at("subcommunicator").get<std::string>().starts_with("inter-node")) << explanation;
      EXPECT_EQ(plan.at(1).at("backend"), "shm") << explanation;
    }
  });
}

std::string refusal(isthmus_status status, isthmus_status expected) {
  EXPECT_EQ(status, expected);
  return topology::last_error().message;
}

TEST(mixed, symmetric_memory_is_refused) {
  run_on_nodes({"a", "a", "a", "a"}, settings_for_devices(mixed), [](const test_rank& self) {
    void* pointer = nullptr;
    EXPECT_NE(
        refusal(isthmus_memory_allocate_symmetric(self.communicator, 64, &pointer), ISTHMUS_ERROR_UNSUPPORTED)
            .find("several platforms"),
        std::string::npos);
  });
}

TEST(mixed, missing_mixed_backend_is_reported) {
  auto settings = settings_for_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST});
  settings.prepare = [](int) { setenv("ISTHMUS_BACKEND", "shm", 1); };
  run_on_nodes({"a", "a"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(self.failure.message).find("it supports one platform per communicator"),
              std::string::npos)
        << self.failure.message;
    EXPECT_NE(std::string(self.failure.hint).find("mixed"), std::string::npos) << self.failure.hint;
  });
}

}  // namespace
