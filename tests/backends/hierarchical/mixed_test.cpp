// Ranks on devices of several platforms in one communicator, and devices on nodes of their own: every
// collective against the oracle, the same bits on all ranks, and what is refused. Devices are stand-ins, or of
// CUDA alone.
#include <nlohmann/json.hpp>
#include <sstream>

#include "run_cases.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::run_all_cases;
using hierarchical_test::test_rank;
using hierarchical_test::with_devices;

// Of four ranks: TEST_PLATFORMS="cuda host hip level_zero".
const std::vector<isthmus_platform> mixed = [] {
  const char* const text = std::getenv("TEST_PLATFORMS");
  std::istringstream words(text == nullptr ? "cuda host hip host" : text);
  std::vector<isthmus_platform> found;
  for (std::string word; words >> word;)
    for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
      if (word == isthmus_platform_name(static_cast<isthmus_platform>(i)))
        found.push_back(static_cast<isthmus_platform>(i));
  return found;
}();

TEST(mixed, every_collective_is_right_and_the_same_on_all) {
  run_on_nodes({"a", "a", "a", "a"}, with_devices(mixed),
           [](const test_rank& self) { run_all_cases(self, mixed[static_cast<std::size_t>(self.number)]); });
}

TEST(mixed, over_several_nodes) {
  run_on_nodes({"a", "a", "b", "b"}, with_devices(mixed),
           [](const test_rank& self) { run_all_cases(self, mixed[static_cast<std::size_t>(self.number)]); });
}

TEST(devices, on_nodes_of_their_own_go_through_the_host) {
  auto settings = with_devices(std::vector(4, ISTHMUS_PLATFORM_CUDA));
  // Which crosses, too, and on a machine with one GPU finds that the ranks share it.
  settings.prepare = [](int) { setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1); };
  run_on_nodes({"a", "b", "c", "d"}, settings, [](const test_rank& self) { run_all_cases(self, ISTHMUS_PLATFORM_CUDA); });
}

TEST(mixed, explain_says_what_goes_through_the_host) {
  run_on_nodes({"a", "a", "a", "a"}, with_devices(mixed), [](const test_rank& self) {
    const auto explanation = hierarchical_test::explained(self, ISTHMUS_ALLREDUCE);
    EXPECT_EQ(explanation.at("backend"), "hierarchical");
    const auto& plan = explanation.at("plan");
    if (std::getenv("TEST_SHARE_DEVICE") == nullptr) {
      EXPECT_EQ(plan.at(0).at("subcommunicator"), "through the host");
      EXPECT_EQ(plan.at(0).at("backend"), "host") << explanation;
    } else {
      const bool is_device = mixed[static_cast<std::size_t>(self.number)] == ISTHMUS_PLATFORM_CUDA;
      EXPECT_EQ(plan.at(0).at("backend"), is_device ? "nccl" : "host") << explanation;
      EXPECT_TRUE(plan.at(1).at("subcommunicator").get<std::string>().starts_with("between the islands")) << explanation;
      EXPECT_EQ(plan.at(1).at("backend"), "host") << explanation;
    }
  });
}

std::string refusal(isthmus_status got, isthmus_status wanted) {
  EXPECT_EQ(got, wanted);
  return topology::last_error().message;
}

TEST(mixed, what_needs_one_platform_is_refused) {
  run_on_nodes({"a", "a", "a", "a"}, with_devices(mixed), [](const test_rank& self) {
    void* pointer = nullptr;
    EXPECT_NE(
        refusal(isthmus_memory_allocate_symmetric(self.communicator, 64, &pointer), ISTHMUS_ERROR_UNSUPPORTED)
            .find("several platforms"),
        std::string::npos);
  });
}

TEST(mixed, without_a_backend_that_joins_platforms_creation_says_why) {
  auto settings = with_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST});
  settings.prepare = [](int) { setenv("ISTHMUS_BACKEND", "host", 1); };
  run_on_nodes({"a", "a"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(self.failure.message).find("it works on one platform at a time"), std::string::npos)
        << self.failure.message;
    EXPECT_NE(std::string(self.failure.hint).find("mixed"), std::string::npos) << self.failure.hint;
  });
}

}  // namespace
