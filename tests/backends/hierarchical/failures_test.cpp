// A failure on one node is reported on all nodes, with ranks numbered as in the parent.
#include <csignal>

#include "node_ranks.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::test_rank;
using topology::remove_recordings;

std::vector<float> values(std::size_t n) { return std::vector<float>(n, 1.0F); }

isthmus_status sum(const test_rank& self, isthmus_communicator communicator, std::vector<float>& data) {
  return isthmus_allreduce(data.data(), data.data(), data.size(), ISTHMUS_FLOAT32, ISTHMUS_SUM,
                           communicator == nullptr ? self.communicator : communicator, nullptr);
}

// Repeats the call until it fails and returns the error.
isthmus_error_info first_failure(const test_rank& self, std::vector<float> data) {
  for (int i = 0; i < 100000; ++i)
    if (sum(self, nullptr, data) != ISTHMUS_SUCCESS) return topology::last_error();
  return {};
}

// Kills `victim` after a few calls; the errors of all other ranks must name it.
void expect_named(const std::vector<std::string>& nodes, int victim, std::size_t elements) {
  run_on_nodes(
      nodes, {},
      [=](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(elements);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.sync.wait();
        if (self.number == victim) raise(SIGKILL);
        const std::string text = first_failure(self, std::move(data)).message;
        EXPECT_NE(text.find("rank " + std::to_string(victim)), std::string::npos)
            << self.number << ": " << text;
      },
      1);
}

TEST(killed_rank, on_another_node_is_named_on_all) { expect_named({"a", "a", "b", "b"}, 3, 4096); }

TEST(killed_rank, is_named_during_a_chunked_message) { expect_named({"a", "b", "a", "b"}, 2, 4U << 20); }

TEST(killed_rank, survivors_shrink_and_continue) {
  run_on_nodes(
      {"a", "a", "b", "b"}, {},
      [](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(1000);
        ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.sync.wait();
        if (self.number == 1) raise(SIGKILL);
        first_failure(self, values(1000));
        isthmus_communicator survivors = nullptr;
        ASSERT_EQ(isthmus_communicator_shrink(self.communicator, 0, &survivors), ISTHMUS_SUCCESS)
            << topology::last_error().message;
        data = values(1000);
        EXPECT_EQ(sum(self, survivors, data), ISTHMUS_SUCCESS) << topology::last_error().message;
        EXPECT_EQ(data[999], 3.0F);
        isthmus_communicator_destroy(survivors);
      },
      1);
}

// Rank 1 is late for the call, but its process is alive, as all ranks can see or ask the store.
TEST(killed_rank, busy_rank_of_its_node_is_not_reported) {
  run_on_nodes(
      {"a", "a", "a", "a", "b", "b", "b", "b"}, {},
      [](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(4096);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.sync.wait();
        if (self.number == 3) raise(SIGKILL);
        if (self.number == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
        const std::string text = first_failure(self, std::move(data)).message;
        EXPECT_EQ(text.find("not respond"), std::string::npos) << self.number << ": " << text;
      },
      1);
}

std::vector<int> failed_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

const std::vector<std::string> four_nodes_of_two{"a", "a", "b", "b", "c", "c", "d", "d"};

hierarchical_test::run_settings short_timeout_settings() {
  hierarchical_test::run_settings settings;
  settings.timeout_s = 8;
  return settings;
}

// `text` must name the missing ranks, numbered as in the parent, and no other rank.
void expect_last_node_missing(const test_rank& self, const std::string& text) {
  EXPECT_TRUE(text.find("rank 6 is missing, and rank 7 of the same node does not respond") !=
                  std::string::npos ||
              text.find("rank 7 is missing, and rank 6 of the same node does not respond") != std::string::npos)
      << self.number << ": " << text;
  EXPECT_EQ(failed_ranks(), (std::vector{6, 7})) << self.number << ": " << text;
}

// Runs `work` after a first allreduce of n elements, on four nodes of two ranks that cannot see
// each other's recordings.
template <typename Work>
void after_a_sum(std::size_t n, Work work) {
  run_on_nodes(four_nodes_of_two, short_timeout_settings(), [&](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    auto data = values(n);
    ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    remove_recordings();
    self.sync.wait();
    work(self, data);
  });
}

// Each rank waits in a subcommunicator, in which the missing rank has a different number.
TEST(unresponsive_node, is_named_on_all_as_parent_ranks) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) return;
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    expect_last_node_missing(self, topology::last_error().message);
  });
}

TEST(unresponsive_node, is_named_during_a_chunked_message) {
  after_a_sum(1U << 20, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) return;
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    expect_last_node_missing(self, topology::last_error().message);
  });
}

// Only the intra-node subcommunicator knows that rank 0 is late, and no subcommunicator knows both waits.
TEST(unresponsive_node, is_named_through_a_chain_of_waits) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number > 1) return;
    const int from = self.number == 0 ? 6 : 0;
    ASSERT_NE(isthmus_recv(data.data(), data.size(), ISTHMUS_FLOAT32, from, self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    expect_last_node_missing(self, topology::last_error().message);
  });
}

// Late by less than the time that the other ranks need to find out who waits.
TEST(unresponsive_node, is_named_if_it_arrives_after_the_timeout) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) std::this_thread::sleep_for(std::chrono::milliseconds(8250));
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    const auto failed = failed_ranks();
    EXPECT_TRUE(failed == std::vector{6} || failed == std::vector{7} || failed == (std::vector{6, 7}))
        << self.number << ": " << topology::last_error().message;
  });
}

TEST(abort, reaches_other_nodes) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    auto data = values(100);
    ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    self.sync.wait();
    if (self.number == 2) {
      EXPECT_EQ(isthmus_communicator_abort(self.communicator), ISTHMUS_SUCCESS);
      return;
    }
    const std::string text = first_failure(self, std::move(data)).message;
    EXPECT_NE(text.find("isthmus_communicator_abort was called on rank 2"), std::string::npos) << text;
  });
}

TEST(split, of_hierarchical_groups_by_node_again) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    isthmus_communicator parity_group = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, self.number % 2, 0, &parity_group), ISTHMUS_SUCCESS)
        << topology::last_error().message;
    auto data = values(100);
    EXPECT_EQ(sum(self, parity_group, data), ISTHMUS_SUCCESS) << topology::last_error().message;
    EXPECT_EQ(data[99], 2.0F);
    isthmus_communicator_destroy(parity_group);
  });
}

}  // namespace
