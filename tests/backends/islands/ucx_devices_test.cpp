// Devices on nodes of their own, whose memory UCX moves: a stand-in's, or CUDA's where TEST_UCX_DEVICES says
// that UCX reaches it.
#include <nlohmann/json.hpp>

#include "play.hpp"

namespace {

using hierarchical_test::on_nodes;
using hierarchical_test::rank;

// What sums goes to islands, which is behind ucx.
hierarchical_test::setting over_ucx(int ranks) {
  hierarchical_test::setting with;
  with.platforms.assign(static_cast<std::size_t>(ranks), ISTHMUS_PLATFORM_CUDA);
  with.config =
      "[[rule]]\nplatform = \"cuda\"\nuse = \"hierarchical\"\n[[rule]]\nplatform = \"cuda\"\nuse = \"ucx\"\n";
  // Small enough for several pieces of a block, and several chunks of a sum.
  with.config += "[backend.ucx]\nchunk_bytes = 4096\n[backend.hierarchical]\nchunk_bytes = 4096\n";
  with.prepare = [](int) { setenv("ISTHMUS_NCCL_LIBRARY", "/nowhere/libnccl.so", 1); };  // which would sum
  return with;
}

class ucx_devices : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TEST_UCX_DEVICES") == nullptr) GTEST_SKIP() << "TEST_UCX_DEVICES is not set";
  }
};

TEST_F(ucx_devices, every_collective_is_right) {
  on_nodes({"a", "b", "c", "d"}, over_ucx(4), [](const rank& own) { play_all(own, ISTHMUS_PLATFORM_CUDA); });
}

TEST_F(ucx_devices, move_by_ucx_and_sum_by_islands) {
  on_nodes({"a", "b"}, over_ucx(2), [](const rank& own) {
    ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
    for (const auto moves :
         {ISTHMUS_BROADCAST, ISTHMUS_ALLGATHER, ISTHMUS_ALLTOALL, ISTHMUS_GATHER, ISTHMUS_SEND})
      EXPECT_EQ(hierarchical_test::explained(own, moves).at("backend"), "ucx") << isthmus_collective_name(moves);
    for (const auto sums : {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE, ISTHMUS_REDUCE_SCATTER})
      EXPECT_EQ(hierarchical_test::explained(own, sums).at("backend"), "hierarchical") << isthmus_collective_name(sums);
  });
}

}  // namespace
