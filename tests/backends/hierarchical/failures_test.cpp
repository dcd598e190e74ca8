// A failure in one island is known in all of them, by the numbers of the whole.
#include <csignal>

#include "node_ranks.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::test_rank;
using topology::remove_recordings;

std::vector<float> values(std::size_t n) { return std::vector<float>(n, 1.0F); }

isthmus_status sum(const test_rank& self, isthmus_communicator by, std::vector<float>& of) {
  return isthmus_allreduce(of.data(), of.data(), of.size(), ISTHMUS_FLOAT32, ISTHMUS_SUM,
                           by == nullptr ? self.communicator : by, nullptr);
}

// Calls until one fails; that one's error.
isthmus_error_info first_failure(const test_rank& self, std::vector<float> data) {
  for (int i = 0; i < 100000; ++i)
    if (sum(self, nullptr, data) != ISTHMUS_SUCCESS) return topology::last_error();
  return {};
}

// After a few calls `victim` dies; what the others then say names it.
void expect_named(const std::vector<std::string>& nodes, int victim, std::size_t elements) {
  run_on_nodes(
      nodes, {},
      [=](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(elements);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.all.wait();
        if (self.number == victim) raise(SIGKILL);
        const std::string text = first_failure(self, std::move(data)).message;
        EXPECT_NE(text.find("rank " + std::to_string(victim)), std::string::npos) << self.number << ": " << text;
      },
      1);
}

TEST(a_killed_rank, of_another_island_is_named_on_all) { expect_named({"a", "a", "b", "b"}, 3, 4096); }

TEST(a_killed_rank, is_named_in_a_large_message_in_chunks) { expect_named({"a", "b", "a", "b"}, 2, 4U << 20); }

TEST(a_killed_rank, leaves_ranks_that_shrink_and_go_on) {
  run_on_nodes(
      {"a", "a", "b", "b"}, {},
      [](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(1000);
        ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.all.wait();
        if (self.number == 1) raise(SIGKILL);
        first_failure(self, values(1000));
        isthmus_communicator rest = nullptr;
        ASSERT_EQ(isthmus_communicator_shrink(self.communicator, 0, &rest), ISTHMUS_SUCCESS)
            << topology::last_error().message;
        data = values(1000);
        EXPECT_EQ(sum(self, rest, data), ISTHMUS_SUCCESS) << topology::last_error().message;
        EXPECT_EQ(data[999], 3.0F);
        isthmus_communicator_destroy(rest);
      },
      1);
}

// It has come to no call, but all see, or could ask the store, that its process lives.
TEST(a_killed_rank, does_not_make_a_busy_one_of_its_node_a_suspect) {
  run_on_nodes(
      {"a", "a", "a", "a", "b", "b", "b", "b"}, {},
      [](const test_rank& self) {
        ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
        auto data = values(4096);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
        self.all.wait();
        if (self.number == 3) raise(SIGKILL);
        if (self.number == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
        const std::string text = first_failure(self, std::move(data)).message;
        EXPECT_EQ(text.find("not heard of"), std::string::npos) << self.number << ": " << text;
      },
      1);
}

std::vector<int> failed_ranks() {
  std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
  isthmus_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

const std::vector<std::string> four_of_two{"a", "a", "b", "b", "c", "c", "d", "d"};

hierarchical_test::run_settings short_timeout_settings() {
  hierarchical_test::run_settings settings;
  settings.timeout_s = 8;
  return settings;
}

// `text` says who is missing, in the numbers of the whole, and blames nobody else.
void expect_last_island_missing(const test_rank& self, const std::string& text) {
  EXPECT_TRUE(text.find("rank 6 is missing, and rank 7 of the same node is not heard of") !=
                  std::string::npos ||
              text.find("rank 7 is missing, and rank 6 of the same node is not heard of") != std::string::npos)
      << self.number << ": " << text;
  const auto failed = failed_ranks();
  EXPECT_TRUE(failed == std::vector{6} || failed == std::vector{7}) << self.number << ": " << text;
}

// On four nodes of two ranks that see no recordings of each other, behind a first sum of n elements.
template <typename Work>
void after_a_sum(std::size_t n, Work work) {
  run_on_nodes(four_of_two, short_timeout_settings(), [&](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    auto data = values(n);
    ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    remove_recordings();
    self.all.wait();
    work(self, data);
  });
}

// Each waits in a part, where the one that does not come has another number.
TEST(a_silent_island, is_named_on_all_in_the_numbers_of_the_whole) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) return;
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    expect_last_island_missing(self, topology::last_error().message);
  });
}

TEST(a_silent_island, is_named_in_a_large_message_in_chunks) {
  after_a_sum(1U << 20, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) return;
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    expect_last_island_missing(self, topology::last_error().message);
  });
}

// Of rank 0 the part within the island knows that it does not come, and no part knows both waits.
TEST(a_silent_island, is_named_where_a_rank_waits_for_one_that_waits) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number > 1) return;
    const int from = self.number == 0 ? 6 : 0;
    ASSERT_NE(isthmus_recv(data.data(), data.size(), ISTHMUS_FLOAT32, from, self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    expect_last_island_missing(self, topology::last_error().message);
  });
}

// Within the time that others take to ask who waits, so that all know why it comes to nothing.
TEST(a_silent_island, that_comes_a_moment_late_is_named_all_the_same) {
  after_a_sum(4096, [](const test_rank& self, std::vector<float>& data) {
    if (self.number >= 6) std::this_thread::sleep_for(std::chrono::milliseconds(8250));
    ASSERT_NE(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    const auto failed = failed_ranks();
    EXPECT_TRUE(failed == std::vector{6} || failed == std::vector{7} || failed == (std::vector{6, 7}))
        << self.number << ": " << topology::last_error().message;
  });
}

TEST(an_abort, of_one_rank_reaches_other_islands) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    auto data = values(100);
    ASSERT_EQ(sum(self, nullptr, data), ISTHMUS_SUCCESS);
    self.all.wait();
    if (self.number == 2) {
      EXPECT_EQ(isthmus_communicator_abort(self.communicator), ISTHMUS_SUCCESS);
      return;
    }
    const std::string text = first_failure(self, std::move(data)).message;
    EXPECT_NE(text.find("isthmus_communicator_abort was called on rank 2"), std::string::npos) << text;
  });
}

TEST(a_split, of_islands_has_islands_of_its_own) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
    isthmus_communicator odd = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, self.number % 2, 0, &odd), ISTHMUS_SUCCESS)
        << topology::last_error().message;
    auto data = values(100);
    EXPECT_EQ(sum(self, odd, data), ISTHMUS_SUCCESS) << topology::last_error().message;
    EXPECT_EQ(data[99], 2.0F);
    isthmus_communicator_destroy(odd);
  });
}

}  // namespace
