// Shrink: after a failure, the survivors continue with correct results, whichever rank was
// lost at whatever time.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "base/process.hpp"
#include "core/shrink/processes.hpp"

namespace {

using namespace shrink_test;

constexpr int steps = 60;  // steps after the last failure

// Runs operations and shrinks after each failure, until enough operations succeed in a row.
std::vector<int> run_and_shrink(
    shared_state& shared, int rank, int size, const std::function<void()>& on_failure = [] {}) {
  auto current = std::make_unique<test_rank>(create(shared, 0, rank, size), all_ranks(size));
  for (int step = 0; shared.end == 0 || step < shared.end; ++step) {
    if (current->run(step) == ISTHMUS_SUCCESS) {
      if (step == 0) ++shared.running;
      int unknown = 0;
      if (shared.all_done)
        shared.end.compare_exchange_strong(unknown, step + steps);  // no rank is that far ahead
      continue;
    }
    on_failure();
    int agreed_step = -1;
    while (agreed_step < 0) {  // a rank that dies now is also in the new communicator
      isthmus_communicator result = nullptr;
      const isthmus_status status = current->shrink(20, result);
      EXPECT_EQ(status, ISTHMUS_SUCCESS) << "rank " << rank << ": " << topology::last_error().message;
      if (status != ISTHMUS_SUCCESS) return {};
      auto next = std::make_unique<test_rank>(result, current->members_of(result));
      current = std::move(next);
      agreed_step = current->min_step(step);
    }
    step = agreed_step - 1;
  }
  return current->members();
}

// Kills the victims at random times while all ranks run operations.
void run_case(int size, const std::vector<int>& victims, unsigned seed, std::chrono::milliseconds max_delay) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  std::vector<int> survivors = all_ranks(size);
  for (const int victim : victims) std::erase(survivors, victim);
  for (int rank = 0; rank < size; ++rank)
    ranks.start(rank, [&, rank] { EXPECT_EQ(run_and_shrink(shared, rank, size), survivors); });
  ASSERT_TRUE(wait_until([&] { return shared.running == size; }));
  std::mt19937 random(seed);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
  for (const int victim : victims) {
    kill(shared.pids[victim], SIGKILL);
    if (max_delay > 0ms) std::this_thread::sleep_for(std::chrono::milliseconds(random()) % max_delay);
  }
  shared.all_done = true;
  ranks.join(victims);
}

// Shrinks the parent and checks the members of the new communicator.
std::unique_ptr<test_rank> expect_shrunk(const test_rank& parent, double wait_s,
                                         const std::vector<int>& expected) {
  isthmus_communicator result = nullptr;
  EXPECT_EQ(parent.shrink(wait_s, result), ISTHMUS_SUCCESS) << topology::last_error().message;
  if (result == nullptr) return nullptr;
  EXPECT_EQ(parent.members_of(result), expected);
  return std::make_unique<test_rank>(result, parent.members_of(result));
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Sanitizers keep freed memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool checks_memory = false;
#else
constexpr bool checks_memory = true;
#endif

long resident_pages() {
  long total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

}  // namespace

// Rank 0 serves the store. Without it, the survivors connect through the store of their lowest rank.
TEST(shrink, survivors_continue_without_any_one_rank) {
  for (int victim = 0; victim < 4; ++victim) run_case(4, {victim}, static_cast<unsigned>(victim), 0ms);
}

TEST(shrink, survivors_continue_without_two_ranks) {
  run_case(5, {0, 3}, 1, 0ms);
  run_case(5, {4, 2}, 2, 0ms);
  run_case(4, {0, 1}, 3, 400ms);  // the second dies while or after it takes over the store
  run_case(4, {1, 2}, 4, 400ms);
}

TEST(shrink, tolerates_a_death_during_shrink) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const int size = 4, first_victim = static_cast<int>(seed % 4),
              late_victim = static_cast<int>((seed + 1 + seed / 4) % 4);
    shared_state& shared = new_shared_state();
    rank_processes ranks(shared);
    std::vector<int> survivors = all_ranks(size);
    std::erase(survivors, first_victim);
    std::erase(survivors, late_victim);
    for (int rank = 0; rank < size; ++rank)
      ranks.start(rank, [&, rank] {
        std::thread end;
        const auto on_failure = [&] {
          if (rank == late_victim)
            end = std::thread([seed] {
              std::this_thread::sleep_for(std::chrono::milliseconds(8 * seed));
              kill(getpid(), SIGKILL);
            });
        };
        EXPECT_EQ(run_and_shrink(shared, rank, size, on_failure), survivors);
      });
    ASSERT_TRUE(wait_until([&] { return shared.running == size; }));
    kill(shared.pids[first_victim], SIGKILL);
    ASSERT_TRUE(wait_until([&] {
      return isthmus::read_process_state(shared.pids[late_victim]) == isthmus::process_state::exited;
    }));
    shared.all_done = true;
    ranks.join({first_victim, late_victim});
  }
}

// The stopped rank resumes and is excluded. Its writes into the memory of others are tested by the
// fence test of shm.
TEST(shrink, excludes_and_notifies_a_stopped_rank) {
  for (const int stopped : {2, 0}) {
    SCOPED_TRACE(stopped);
    shared_state& shared = new_shared_state();
    rank_processes ranks(shared);
    std::vector<int> survivors = all_ranks(3);
    std::erase(survivors, stopped);
    for (int rank = 0; rank < 3; ++rank)
      ranks.start(rank, [&, rank] {
        test_rank old_rank(create(shared, 0, rank, 3, 2), all_ranks(3));
        ASSERT_EQ(old_rank.run(0), ISTHMUS_SUCCESS);
        ++shared.running;
        ASSERT_TRUE(wait_until([&] { return shared.step == 1; }));
        int step = 1;
        while (old_rank.run(step) == ISTHMUS_SUCCESS) ++step;
        if (rank == stopped) {
          isthmus_communicator result = nullptr;
          EXPECT_NE(old_rank.shrink(1, result), ISTHMUS_SUCCESS);
          const std::string message = topology::last_error().message;
          EXPECT_TRUE(message.find("continued without rank") != std::string::npos ||
                      message.find("may continue without rank") != std::string::npos)
              << message;
          EXPECT_EQ(result, nullptr);
          return;
        }
        const auto after = expect_shrunk(old_rank, 1, survivors);
        ASSERT_NE(after, nullptr);
        for (int i = 0; i < 20; ++i)
          EXPECT_EQ(after->run(i), ISTHMUS_SUCCESS) << topology::last_error().message;
        ++shared.running;
        EXPECT_TRUE(wait_until([&] { return shared.step == 2; }));  // this process serves the store
      });
    ASSERT_TRUE(wait_until([&] { return shared.running == 3; }));
    kill(shared.pids[stopped], SIGSTOP);
    shared.step = 1;
    EXPECT_TRUE(wait_until([&] { return shared.running == 5; }));
    kill(shared.pids[stopped], SIGCONT);
    EXPECT_TRUE(wait_until(
        [&] { return isthmus::read_process_state(shared.pids[stopped]) == isthmus::process_state::exited; }));
    shared.step = 2;
    ranks.join({});
  }
}

// Two of three ranks repeatedly form a communicator with a new third rank. Earlier
// communicators must leak nothing.
TEST(shrink, alternates_with_growth_without_leaks) {
  constexpr int rounds = 20;
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  const auto run_rounds = [&](int rank) {
    std::unique_ptr<test_rank> current;
    std::size_t descriptors = 0;
    long pages = 0;
    for (int round = 0; round < rounds; ++round) {
      auto regrown = std::make_unique<test_rank>(create(shared, round, rank, 3), all_ranks(3));
      current.reset();
      for (int step = 0; step < 5; ++step)
        ASSERT_EQ(regrown->run(step), ISTHMUS_SUCCESS) << topology::last_error().message;
      if (rank == 0) ++shared.step;  // the newcomer may exit
      for (int step = 5; regrown->run(step) == ISTHMUS_SUCCESS;) ++step;
      current = expect_shrunk(*regrown, 20, {0, 1});
      ASSERT_NE(current, nullptr);
      EXPECT_EQ(current->run(0), ISTHMUS_SUCCESS) << topology::last_error().message;
      if (round == 4) descriptors = open_descriptors(), pages = resident_pages();
    }
    EXPECT_LE(open_descriptors(),
              descriptors + 2);  // a store may outlive its last client for a short time
    if (checks_memory) {
      EXPECT_LE(resident_pages(), pages + pages / 10);
    }
  };
  for (int rank = 0; rank < 2; ++rank) ranks.start(rank, [&, rank] { run_rounds(rank); });
  for (int round = 0; round < rounds; ++round) {
    ranks.start(2, [&, round] {
      test_rank new_rank(create(shared, round, 2, 3), all_ranks(3));
      for (int step = 0; step < 5; ++step) EXPECT_EQ(new_rank.run(step), ISTHMUS_SUCCESS);
      kill(getpid(), SIGKILL);
    });
    ASSERT_TRUE(wait_until([&] { return shared.step > round; }));
  }
  ranks.join({2});
}

// A rank that does not know whether the others continue must not continue alone.
TEST(shrink, fails_until_a_majority_participates) {
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  for (int rank = 0; rank < 2; ++rank)
    ranks.start(rank, [&, rank] {
      test_rank old_rank(create(shared, 0, rank, 2), all_ranks(2));
      if (rank == 1) {
        isthmus_communicator result = nullptr;
        EXPECT_EQ(old_rank.shrink(0.2, result), ISTHMUS_ERROR_TIMEOUT);
        const std::string message = topology::last_error().message;
        EXPECT_NE(message.find("it is unknown whether rank 0 exited"), std::string::npos) << message;
        int failed_rank = -1;
        EXPECT_EQ(isthmus_last_error_ranks(&failed_rank, 1), 1u);
        EXPECT_EQ(failed_rank, 0);
        shared.step = 1;
      }
      ASSERT_TRUE(wait_until([&] { return shared.step == 1; }));
      const auto after = expect_shrunk(old_rank, 20, {0, 1});
      ASSERT_NE(after, nullptr);
      EXPECT_EQ(after->run(0), ISTHMUS_SUCCESS) << topology::last_error().message;
    });
  ranks.join({});
}

TEST(shrink, excludes_healthy_ranks_that_exit) {
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  for (int rank = 0; rank < 3; ++rank)
    ranks.start(rank, [&, rank] {
      test_rank old_rank(create(shared, 0, rank, 3), all_ranks(3));
      EXPECT_EQ(old_rank.run(0), ISTHMUS_SUCCESS);
      ++shared.running;  // a shrink aborts operations that others still run
      ASSERT_TRUE(wait_until([&] { return shared.running == 3; }));
      if (rank == 1) return;
      const auto after = expect_shrunk(old_rank, 20, {0, 2});
      ASSERT_NE(after, nullptr);
      EXPECT_EQ(after->run(0), ISTHMUS_SUCCESS) << topology::last_error().message;
      EXPECT_EQ(old_rank.run(1), ISTHMUS_ERROR_ABORTED) << "shrink aborts the parent";
      int none = 0;
      EXPECT_EQ(isthmus_communicator_parent_rank(old_rank.native(), 0, &none), ISTHMUS_SUCCESS);
      EXPECT_EQ(none, -1);
    });
  ranks.join({});
}

TEST(shrink, works_in_a_group_of_one_thread) {
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  ranks.start(0, [&] {
    constexpr int n = 3;
    const isthmus_device devices[n]{};
    isthmus_communicator parents[n], after[n]{};
    ASSERT_EQ(isthmus_communicator_create_all(n, devices, nullptr, parents), ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_communicator_abort(parents[1]), ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(isthmus_communicator_shrink(parents[rank], 0, &after[rank]), ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << topology::last_error().message;
    std::int64_t local_value = 1, sums[n]{};
    ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(
          isthmus_allreduce(&local_value, &sums[rank], 1, ISTHMUS_INT64, ISTHMUS_SUM, after[rank], nullptr),
          ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << topology::last_error().message;
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(sums[rank], n);
      isthmus_communicator_destroy(parents[rank]);
      isthmus_communicator_destroy(after[rank]);
    }
  });
  ranks.join({});
}

TEST(shrink, rejects_invalid_arguments) {
  shared_state& shared = new_shared_state();
  rank_processes ranks(shared);
  ranks.start(0, [&] {
    const test_rank alone(create(shared, 0, 0, 1), all_ranks(1));
    isthmus_communicator result = nullptr;
    int old_rank = 0;
    for (const double wait_s : {-1.0, 1e10, std::nan("")})
      EXPECT_EQ(alone.shrink(wait_s, result), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(isthmus_communicator_shrink(alone.native(), 0, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(isthmus_communicator_shrink(nullptr, 0, &result), ISTHMUS_ERROR_INVALID_USAGE);
    EXPECT_EQ(isthmus_communicator_parent_rank(alone.native(), 1, &old_rank), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(isthmus_communicator_parent_rank(alone.native(), 0, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
    const auto after = expect_shrunk(alone, 0, {0});
    ASSERT_NE(after, nullptr);
    EXPECT_EQ(after->run(0), ISTHMUS_SUCCESS);
  });
  ranks.join({});
}
