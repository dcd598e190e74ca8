// Tests the backend contexts that tensor parallelism creates for the devices of one process.
// peer_scratch uses them.
#include "backends/p2p/local_contexts.hpp"

#include <gtest/gtest.h>

#include <isthmus/plugin.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/backend_option.hpp"

namespace {

constexpr int ranks = 3;
const isthmus_device devices[ranks] = {
    {ISTHMUS_PLATFORM_CUDA, 0}, {ISTHMUS_PLATFORM_CUDA, 1}, {ISTHMUS_PLATFORM_CUDA, 2}};

// The setup reads options, so the contexts must provide the option function.
TEST(local_contexts, options_are_not_set) {
  const isthmus::p2p::local_contexts contexts(ranks, devices, 5.0);
  for (int rank = 0; rank < ranks; ++rank) {
    bool may_share = false;
    EXPECT_EQ(isthmus::read_flag(contexts.context(rank), "share_device", may_share), "");
    EXPECT_FALSE(may_share);
  }
}

TEST(local_contexts, ranks_in_threads_exchange_votes) {
  isthmus::p2p::local_contexts contexts(ranks, devices, 5.0);
  std::vector<isthmus::votes<int>> received_votes(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      isthmus::vote<int> own_vote;
      own_vote.value = 10 * contexts.context(rank).device.ordinal;
      EXPECT_EQ(isthmus::gather_votes(contexts.context(rank), own_vote,
                                      received_votes[static_cast<std::size_t>(rank)]),
                ISTHMUS_SUCCESS);
    });
  for (std::thread& each : threads) each.join();
  for (const isthmus::votes<int>& all : received_votes)
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)].value, 10 * rank);
}

}  // namespace
