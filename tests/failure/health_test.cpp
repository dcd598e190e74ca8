// Health records, and the processes that explain a failure.
#include "failure/health.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

namespace {

using namespace isthmus;
using index_list = std::vector<std::size_t>;

failure_info failure_with(isthmus_status status, const char* message) {
  return make_error(status, ISTHMUS_HERE, message).info();
}

TEST(health, first_failure_is_kept) {
  const auto record = std::make_unique<health_record>();
  record->set_failure(failure_with(ISTHMUS_ERROR_TIMEOUT, "first"), health_record::published);
  record->set_failure(failure_with(ISTHMUS_ERROR_BACKEND, "second"), health_record::local);
  EXPECT_EQ(record->state.load(), health_record::published);
  EXPECT_STREQ(record->failure().message, "first");
}

TEST(health, peers_do_not_take_over_a_local_failure) {
  const auto own = std::make_unique<health_record>(), other = std::make_unique<health_record>();
  peer_monitor peers(0, 2);
  const rank_process processes[2] = {{0, 0, own.get()}, {0, 0, other.get()}};
  peers.watch(processes);
  other->set_failure(failure_with(ISTHMUS_ERROR_TIMEOUT, "local"), health_record::local);
  EXPECT_FALSE(peers.read_failure());
  EXPECT_TRUE(peers.publish(failure_with(ISTHMUS_ERROR_REMOTE, "published")));
  ASSERT_TRUE(peers.read_failure());
  EXPECT_STREQ(peers.read_failure()->message, "published");
}

TEST(process_failure, lost_rank_precedes_stopped_rank) {
  const process_report reports[] = {{process_state::stopped, false}, {process_state::exited, false}, {}};
  const process_failure cause = find_process_failure(reports);
  EXPECT_EQ(cause.state, process_state::exited);
  EXPECT_EQ(cause.processes, index_list{1});
}

// A survivor reports a timeout and exits before another rank looks for the cause.
TEST(process_failure, stopped_rank_precedes_exited_survivor) {
  const process_report reports[] = {{process_state::exited, true}, {}, {process_state::stopped, false}};
  const process_failure cause = find_process_failure(reports);
  EXPECT_EQ(cause.state, process_state::stopped);
  EXPECT_EQ(cause.processes, index_list{2});
}

TEST(process_failure, rank_that_failed_and_exited_is_the_last_choice) {
  const process_report reports[] = {{}, {process_state::exited, true}};
  EXPECT_EQ(find_process_failure(reports).processes, index_list{1});
  EXPECT_TRUE(find_process_failure(std::span(reports, 1)).processes.empty());
}

TEST(process_failure, message_names_stopped_rank_after_a_survivor_exited) {
  const auto start_child = [] {
    const pid_t child = ::fork();
    while (child == 0) ::pause();
    return child;
  };
  const pid_t survivor = start_child(), stopped = start_child();
  ::kill(stopped, SIGSTOP);
  ::kill(survivor, SIGKILL);
  while (read_process_state(stopped) != process_state::stopped ||
         read_process_state(survivor) != process_state::exited)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto record = std::make_unique<health_record>();
  record->set_failure(failure_with(ISTHMUS_ERROR_TIMEOUT, "rank 1 waited"), health_record::published);
  peer_monitor peers(0, 3);
  const rank_process processes[3] = {
      {::getpid(), 0, nullptr}, {survivor, 0, record.get()}, {stopped, 0, nullptr}};
  peers.watch(processes);
  EXPECT_EQ(peers.describe({1, 2}), "1, 2 (its process is stopped)");
  EXPECT_EQ(peers.describe({}), "rank 2 (its process is stopped)");
  for (const pid_t child : {survivor, stopped}) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
