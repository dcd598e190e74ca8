// Devices that are alone on their nodes, with UCX on device memory: of a stand-in, or of CUDA if
// TEST_UCX_DEVICES is set because UCX can access it.
#include <nlohmann/json.hpp>

#include "run_cases.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::test_rank;

// Reductions use hierarchical, which ranks after ucx in the rules.
hierarchical_test::run_settings over_ucx(int ranks) {
  hierarchical_test::run_settings settings;
  settings.platforms.assign(static_cast<std::size_t>(ranks), ISTHMUS_PLATFORM_CUDA);
  settings.config =
      "[[rule]]\nplatform = \"cuda\"\nuse = \"hierarchical\"\n[[rule]]\nplatform = \"cuda\"\nuse = \"ucx\"\n";
  // Small enough for several chunks of a block and of a reduction.
  settings.config += "[backend.ucx]\nchunk_bytes = 4096\n[backend.hierarchical]\nchunk_bytes = 4096\n";
  settings.prepare = [](int) { setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1); };
  return settings;
}

class ucx_devices : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TEST_UCX_DEVICES") == nullptr) GTEST_SKIP() << "TEST_UCX_DEVICES is not set";
  }
};

TEST_F(ucx_devices, every_collective_is_correct) {
  run_on_nodes({"a", "b", "c", "d"}, over_ucx(4),
               [](const test_rank& self) { run_all_cases(self, ISTHMUS_PLATFORM_CUDA); });
}

TEST_F(ucx_devices, ucx_moves_data_and_hierarchical_reduces) {
  run_on_nodes({"a", "b"}, over_ucx(2), [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    for (const auto moves :
         {ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER, ISTHMUS_ALLTOALL, ISTHMUS_GATHER, ISTHMUS_SEND})
      EXPECT_EQ(hierarchical_test::explain_call(self, moves).at("backend"), "ucx")
          << isthmus_collective_name(moves);
    for (const auto sums : {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE, ISTHMUS_REDUCE_SCATTER})
      EXPECT_EQ(hierarchical_test::explain_call(self, sums).at("backend"), "hierarchical")
          << isthmus_collective_name(sums);
  });
}

}  // namespace
