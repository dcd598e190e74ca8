// Attribution of failures across processes: survivors name the lost rank, also if they are blocked on ranks
// that are themselves blocked on it, in a collective, a split or an allocation. All these waits must end.
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <isthmus/error.hpp>
#include <thread>

#include "core/support.hpp"
#include "isthmus/memory.h"
#include "topology/topology.hpp"

namespace failure_attribution_test {
namespace {

using namespace std::chrono_literals;
using test::last_error;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

constexpr int size = 4;

struct outcome {
  isthmus_status create_status, call_status;
  bool was_rank_0_running;  // when the call returned
  isthmus_error_info error;
  std::size_t failed_rank_count;
  std::array<int, size> failed_ranks;
};

// State shared by the processes of a test.
struct shared_state {
  std::array<outcome, size> outcomes;
  std::array<std::atomic<pid_t>, size> pids;
  std::atomic<int> done;
};

using rank_action = std::function<isthmus_status(isthmus_communicator, int rank)>;

isthmus_status sum(isthmus_communicator rank) {
  float send[4]{}, recv[4]{};
  return isthmus_allreduce(send, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr);
}

isthmus_status split(isthmus_communicator rank) {
  isthmus_communicator subcommunicator = nullptr;
  const isthmus_status status = isthmus_communicator_split(rank, 0, 0, &subcommunicator);
  isthmus_communicator_destroy(subcommunicator);
  return status;
}

isthmus_status allocate(isthmus_communicator rank) {
  void* block = nullptr;
  return isthmus_memory_allocate_symmetric(rank, 1 << 20, &block);
}

// All ranks wait for the failed rank, even and odd ranks in different kinds of calls.
struct call_pair {
  isthmus_status (*even_call)(isthmus_communicator);
  isthmus_status (*odd_call)(isthmus_communicator);
  isthmus_status operator()(isthmus_communicator communicator, int rank) const {
    return rank % 2 == 0 ? even_call(communicator) : odd_call(communicator);
  }
};
constexpr call_pair splits{split, sum}, allocations{sum, allocate};

// Returns false for a zombie.
bool is_running(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] != 'Z';
}

void run_rank(shared_state& shared, topology::rendezvous& barrier, int rank, double timeout_s,
              const rank_action& action) {
  const isthmus_unique_id id = barrier.new_unique_id(rank);
  outcome& result = shared.outcomes[static_cast<std::size_t>(rank)];
  shared.pids[static_cast<std::size_t>(rank)] = getpid();
  test::scoped_file file(test::host_config);
  const auto options = test::options_for(file, timeout_s);
  isthmus_communicator communicator = nullptr;
  result.create_status = isthmus_communicator_create(&id, rank, size, &options, &communicator);
  barrier.wait();  // no rank fails while others are still in creation
  if (result.create_status == ISTHMUS_SUCCESS) result.call_status = action(communicator, rank);
  result.was_rank_0_running = is_running(shared.pids[0]);
  const isthmus::exception failure = isthmus::detail::last_exception();
  result.error = failure.info();
  result.failed_rank_count = failure.ranks().size();
  std::copy_n(failure.ranks().begin(), std::min<std::size_t>(result.failed_rank_count, size),
              result.failed_ranks.begin());
  isthmus_communicator_destroy(communicator);
}

// Runs `action` on the failed rank and `other_calls` on the others; returns the outcomes of the survivors. The
// process of rank 0 serves the store and stays alive, unless rank 0 is the failed rank.
std::vector<outcome> run_case(int failed_rank, double timeout_s, const call_pair& other_calls,
                              const rank_action& action) {
  auto& shared = *new (topology::map_shared(sizeof(shared_state))) shared_state{};
  topology::rendezvous& barrier = topology::rendezvous::create(size);
  topology::child_processes processes;
  for (int rank = 0; rank < size; ++rank)
    processes.start(rank, [&, rank] {
      run_rank(shared, barrier, rank, timeout_s, rank == failed_rank ? action : rank_action(other_calls));
      if (++shared.done == size - 1)
        kill(shared.pids[static_cast<std::size_t>(failed_rank)], SIGCONT);  // the last survivor
      const auto deadline = std::chrono::steady_clock::now() + 30s;
      while (shared.done < size - 1 && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(10ms);  // an exited survivor would also be named
      return 0;
    });
  for (const auto& exit_report : processes.join()) {
    if (exit_report.process == failed_rank) continue;
    EXPECT_EQ(exit_report.failures(), 0) << "rank " << exit_report.process;
  }
  std::vector<outcome> survivors;
  for (int rank = 0; rank < size; ++rank)
    if (rank != failed_rank) survivors.push_back(shared.outcomes[static_cast<std::size_t>(rank)]);
  return survivors;
}

void expect_named(const std::vector<outcome>& survivors, const std::vector<std::string>& texts) {
  for (const outcome& each : survivors) {
    EXPECT_EQ(each.create_status, ISTHMUS_SUCCESS) << each.error.message;
    EXPECT_NE(each.call_status, ISTHMUS_SUCCESS);
    std::vector<testing::Matcher<std::string>> matchers;
    for (const std::string& text : texts) matchers.push_back(HasSubstr(text));
    EXPECT_THAT(std::string(each.error.message), testing::AnyOfArray(matchers));
  }
}

void expect_failed_rank(const std::vector<outcome>& survivors, int failed_rank) {
  for (const outcome& each : survivors) {
    EXPECT_EQ(each.failed_rank_count, 1u) << each.error.message;
    EXPECT_EQ(each.failed_ranks[0], failed_rank) << each.error.message;
  }
}

isthmus_status stop_self(isthmus_communicator, int) {
  raise(SIGSTOP);
  return ISTHMUS_SUCCESS;
}

isthmus_status kill_self(isthmus_communicator, int) {
  raise(SIGKILL);
  return ISTHMUS_SUCCESS;
}

// Long enough that a slow start of the processes on a loaded machine does not count as a late rank.
constexpr double stopped_timeout_s = 8;

TEST(failure_attribution, stopped_rank_is_named_in_other_calls) {
  expect_named(run_case(3, stopped_timeout_s, splits, stop_self),
               {"3 (its process is stopped)", "for rank 3 in allreduce; its process is stopped"});
}

TEST(failure_attribution, stopped_store_process_is_named) {
  expect_named(run_case(0, stopped_timeout_s, allocations, stop_self),
               {"0 (its process is stopped)", "for rank 0 in allreduce; its process is stopped"});
}

TEST(failure_attribution, killed_rank_is_named_before_the_timeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto survivors = run_case(3, 60, allocations, kill_self);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s) << "no rank waits for the timeout";
  expect_named(survivors, {"rank 3 exited", "rank 3 failed or exited"});
  expect_failed_rank(survivors, 3);
}

TEST(failure_attribution, killed_rank_is_described_once) {
  const auto survivors = run_case(3, 60, {sum, sum}, kill_self);
  expect_failed_rank(survivors, 3);
  for (const outcome& each : survivors)
    EXPECT_THAT(std::string(each.error.message), testing::Not(HasSubstr("(its process"))) << each.error.message;
}

TEST(failure_attribution, killed_store_process_is_named) {
  const auto survivors = run_case(0, 60, splits, kill_self);
  expect_named(survivors, {"rank 0 exited", "rank 0 failed or exited"});
  expect_failed_rank(survivors, 0);
}

// Ranks 0 and 1 wait for rank 3 through rank 2, which forwards its contribution.
TEST(failure_attribution, rank_that_a_forwarder_waits_for_is_named) {
  setenv("ISTHMUS_BACKEND", "shm:grid_packet", 1);
  expect_failed_rank(run_case(3, 60, {sum, sum}, kill_self), 3);
  const auto survivors = run_case(3, stopped_timeout_s / 2, {sum, sum}, [](isthmus_communicator, int) {
    std::this_thread::sleep_for(std::chrono::duration<double>(stopped_timeout_s));
    return ISTHMUS_SUCCESS;
  });
  expect_named(survivors, {"rank 3"});
  expect_failed_rank(survivors, 3);
  unsetenv("ISTHMUS_BACKEND");
}

// The process of rank 0 serves the store, so it lives on for seconds after it has left main().
TEST(failure_attribution, exiting_store_process_is_reported_before_it_ends) {
  const auto survivors =
      run_case(0, 60, {sum, sum}, [](isthmus_communicator, int) -> isthmus_status { std::exit(0); });
  expect_named(survivors, {"rank 0 exited", "rank 0 failed or exited"});
  expect_failed_rank(survivors, 0);
  EXPECT_TRUE(std::ranges::any_of(survivors, &outcome::was_rank_0_running)) << "reported at its end";
}

// A child shares the records and the connections of its parent. The split exchanges data over these connections.
TEST(failure_attribution, exit_of_a_forked_child_does_not_affect_its_parent) {
  const auto fork_then_split = [](isthmus_communicator communicator) {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    waitpid(child, nullptr, 0);
    const isthmus_status status = split(communicator);
    return status == ISTHMUS_SUCCESS ? sum(communicator) : status;  // no rank leaves while others split
  };
  const call_pair forks{fork_then_split, fork_then_split};
  for (const outcome& each : run_case(0, 60, forks, forks)) {
    EXPECT_EQ(each.create_status, ISTHMUS_SUCCESS) << each.error.message;
    EXPECT_EQ(each.call_status, ISTHMUS_SUCCESS) << each.error.message;
  }
}

TEST(failure_attribution, remote_abort_ends_every_wait) {
  const auto start = std::chrono::steady_clock::now();
  expect_named(run_case(2, 60, splits,
                        [](isthmus_communicator communicator, int) {
                          std::this_thread::sleep_for(300ms);
                          return isthmus_communicator_abort(communicator);
                        }),
               {"abort was called on rank 2"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s) << "no rank waits for the timeout";
}

// A rank uses async_error to decide whether a result is valid, so the answer must include every notice written
// before. Waits poll for failures only about ten times per second, and the previous operation has just ended,
// so this test checks the explicit query.
TEST(failure_attribution, async_error_sees_earlier_peer_failures) {
  auto& is_aborted = *new (topology::map_shared(sizeof(std::atomic<bool>))) std::atomic<bool>{false};
  topology::rendezvous& barrier = topology::rendezvous::create(2);
  topology::child_processes processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.start(rank, [&, rank] {
      const isthmus_unique_id id = barrier.new_unique_id(rank);
      test::scoped_file file(test::host_config);
      const auto options = test::options_for(file, stopped_timeout_s);
      isthmus_communicator communicator = nullptr;
      EXPECT_EQ(isthmus_communicator_create(&id, rank, 2, &options, &communicator), ISTHMUS_SUCCESS);
      EXPECT_EQ(sum(communicator), ISTHMUS_SUCCESS);
      barrier.wait();
      if (rank == 1) {
        EXPECT_EQ(isthmus_communicator_abort(communicator), ISTHMUS_SUCCESS);
        is_aborted = true;
      } else {
        while (!is_aborted) std::this_thread::sleep_for(1ms);
        EXPECT_EQ(isthmus_communicator_async_error(communicator), ISTHMUS_ERROR_ABORTED);
        EXPECT_THAT(last_error().message, HasSubstr("abort was called on rank 1"));
      }
      isthmus_communicator_destroy(communicator);
      return testing::Test::HasFailure() ? 1 : 0;
    });
  for (const auto& exit_report : processes.join())
    EXPECT_EQ(exit_report.failures(), 0) << "rank " << exit_report.process;
}

// Gives this process its own /dev/shm, in which no file can be created. Returns false without the permission.
bool fill_shared_memory_folder() {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0)
    return false;
  std::ofstream("/dev/shm/full") << std::string(64 << 10, 'x');
  return true;
}

// Runs `action` on three ranks, each in its own process, after all of them have created the communicator. Rank 0
// serves the store. Rank 2 may be killed.
void run_three_ranks(bool has_shared_memory_folder,
                     const std::function<void(isthmus_communicator, int rank)>& action, double timeout_s = 60) {
  auto& is_permitted = *new (topology::map_shared(sizeof(std::atomic<bool>))) std::atomic<bool>{true};
  topology::rendezvous& barrier = topology::rendezvous::create(3);
  topology::child_processes processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.start(rank, [&, rank] {
      if (!has_shared_memory_folder && !fill_shared_memory_folder()) {
        is_permitted = false;
        return 0;
      }
      const isthmus_unique_id id = barrier.new_unique_id(rank);
      test::scoped_file file(test::host_config);
      const auto options = test::options_for(file, timeout_s);
      isthmus_communicator communicator = nullptr;
      EXPECT_EQ(isthmus_communicator_create(&id, rank, 3, &options, &communicator), ISTHMUS_SUCCESS);
      EXPECT_EQ(sum(communicator), ISTHMUS_SUCCESS);
      barrier.wait();
      action(communicator, rank);
      isthmus_communicator_destroy(communicator);
      return testing::Test::HasFailure() ? 1 : 0;
    });
  for (const auto& exit_report : processes.join())
    if (exit_report.process != 2) {
      EXPECT_EQ(exit_report.failures(), 0) << "rank " << exit_report.process;
    }
  if (!is_permitted) GTEST_SKIP() << "needs the permission to mount a file system";
}

// Rank 0 waits for rank 1, which is alive and late. No rank waits for the killed one.
void expect_killed_rank_is_named_while_another_is_late(bool has_shared_memory_folder) {
  auto& is_reported = *new (topology::map_shared(sizeof(std::atomic<bool>))) std::atomic<bool>{false};
  run_three_ranks(has_shared_memory_folder, [&](isthmus_communicator communicator, int rank) {
    if (rank == 2) raise(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    if (rank == 1) {
      while (!is_reported && std::chrono::steady_clock::now() < start + 20s) std::this_thread::sleep_for(10ms);
      return;
    }
    EXPECT_EQ(sum(communicator), ISTHMUS_ERROR_REMOTE);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s) << "it waited for the late rank";
    EXPECT_THAT(std::string(last_error().message), HasSubstr("rank 2 exited"));
    int failed_rank = -1;
    EXPECT_EQ(isthmus_last_error_ranks(&failed_rank, 1), 1u);
    EXPECT_EQ(failed_rank, 2);
    EXPECT_EQ(sum(communicator), ISTHMUS_ERROR_ABORTED);
    is_reported = true;
  });
}

TEST(failure_attribution, killed_rank_is_named_while_another_is_late) {
  expect_killed_rank_is_named_while_another_is_late(true);
}

// Without files of the flight recorders, the ranks see each other's records through memory without a name.
TEST(failure_attribution, killed_rank_is_named_with_a_full_dev_shm) {
  expect_killed_rank_is_named_while_another_is_late(false);
}

// Some ranks wait for, or compare their call with, a rank that has the same count as themselves. If a rank notices the
// mismatch before all ranks have entered the call, it names both sides.
TEST(failure_attribution, rank_with_a_different_count_is_named) {
  auto& right_ranks = *new (topology::map_shared(sizeof(std::atomic<int>))) std::atomic<int>{0};
  topology::rendezvous& barrier = topology::rendezvous::create(3);
  for (const int odd_rank : {0, 1, 2})
    for (const std::uint64_t odd_count : {3u, 100'000u}) {
      const auto run = [&](isthmus_communicator communicator, int rank) {
        const std::uint64_t count = (rank == odd_rank) == (odd_count == 3) ? 3 : 100'000;
        std::vector<float> send(count), recv(count);
        EXPECT_NE(isthmus_allreduce(send.data(), recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator,
                                    nullptr),
                  ISTHMUS_SUCCESS);
        std::vector<int> ranks(isthmus_last_error_ranks(nullptr, 0));
        isthmus_last_error_ranks(ranks.data(), ranks.size());
        EXPECT_THAT(ranks, Contains(odd_rank)) << odd_count << ": " << last_error().message;
        EXPECT_LE(ranks.size(), 2u);
        right_ranks += std::ranges::count(ranks, odd_rank);
        barrier.wait();  // no rank destroys its communicator while others still wait
      };
      right_ranks = 0;
      run_three_ranks(true, run, 0.5);
      EXPECT_EQ(right_ranks, 3) << odd_rank << ", " << odd_count;
    }
}

TEST(failure_attribution, received_message_of_another_size_is_not_missing) {
  topology::rendezvous& barrier = topology::rendezvous::create(3);
  for (const bool is_exchange : {false, true})
    run_three_ranks(true, [&](isthmus_communicator communicator, int rank) {
      EXPECT_EQ(isthmus_barrier(communicator, nullptr), ISTHMUS_SUCCESS);
      const float send[4]{};
      float recv[5];
      isthmus_status status = ISTHMUS_SUCCESS;
      if (is_exchange) isthmus_group_start();
      if (rank == 0 || (rank == 1 && is_exchange))
        status = isthmus_send(send, 4, ISTHMUS_FLOAT32, 1 - rank, communicator, nullptr);
      if (rank == 1 || (rank == 0 && is_exchange))
        status = isthmus_recv(recv, 5, ISTHMUS_FLOAT32, 1 - rank, communicator, nullptr);
      if (is_exchange) status = isthmus_group_end();
      if (rank == 1) {
        EXPECT_EQ(status, ISTHMUS_ERROR_MISMATCH);
        EXPECT_STREQ(last_error().message, "rank 0 sent 16 bytes where rank 1 expects 20");
      }
      barrier.wait();  // no rank destroys its communicator while others still wait
    });
}

TEST(failure_attribution, exit_after_its_part_is_no_failure_of_a_rank) {
  run_three_ranks(true, [](isthmus_communicator communicator, int rank) {
    float send[4]{1, 2, 3, 4}, recv[12]{};
    if (rank == 1) std::this_thread::sleep_for(2s);
    EXPECT_EQ(isthmus_gather(send, recv, 4, ISTHMUS_FLOAT32, 0, communicator, nullptr), ISTHMUS_SUCCESS)
        << last_error().message;
    if (rank == 2) _exit(0);  // without destroying its communicator
    if (rank == 0) {
      EXPECT_EQ(recv[11], 4);
    }
  });
}

TEST(failure_attribution, ranks_in_different_calls_report_it) {
  test::ranks ranks(2, test::host_config);
  test::run_on_each_rank(2, [&](int rank) {
    EXPECT_NE(rank == 0 ? split(ranks[0]) : allocate(ranks[1]), ISTHMUS_SUCCESS);
    EXPECT_THAT(last_error().message, HasSubstr("made a different call than rank"));
  });
}

// After a failed exchange the ranks are out of sync: the next call reports it and exchanges no more data.
TEST(failure_attribution, failed_split_aborts_the_communicator) {
  test::ranks ranks(2, test::host_config, ISTHMUS_PLATFORM_HOST, 0.3);
  EXPECT_EQ(split(ranks[0]), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_THAT(last_error().message, HasSubstr("missing: 1"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(sum(ranks[rank]), ISTHMUS_ERROR_ABORTED);
    EXPECT_THAT(last_error().message, HasSubstr("missing: 1"));
  }
}

}  // namespace
}  // namespace failure_attribution_test
