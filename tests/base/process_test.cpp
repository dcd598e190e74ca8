// States of processes, read from /proc.
#include "base/process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace isthmus {
namespace {

bool becomes(process_state state, pid_t pid) {
  for (int i = 0; i < 1000; ++i) {
    if (read_process_state(pid) == state) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

pid_t fork_process(const std::function<void()>& job) {
  const pid_t child = fork();
  if (child == 0) {
    job();
    _exit(0);
  }
  return child;
}

TEST(process, state_follows_signals_and_exit) {
  const pid_t child = fork_process([] {
    while (true) pause();
  });
  EXPECT_TRUE(becomes(process_state::alive, child));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(process_state::stopped, child));
  EXPECT_FALSE(has_process_exited(child));
  kill(child, SIGCONT);
  EXPECT_TRUE(becomes(process_state::alive, child));
  EXPECT_EQ(parent_process(child), getpid());
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes(process_state::exited, child)) << "although it has not been reaped";
  EXPECT_TRUE(has_process_exited(child));
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read_process_state(child), process_state::exited);
  EXPECT_EQ(process_start_time(child), 0U);
  EXPECT_EQ(parent_process(child), 0);
}

// The first thread has ended and is shown as a zombie, but another thread still runs.
TEST(process, lives_as_long_as_one_thread) {
  const pid_t child = fork_process([] {
    std::thread([] {
      while (true) pause();
    }).detach();
    syscall(SYS_exit, 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(read_process_state(child), process_state::alive);
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(process_state::stopped, child)) << "the zombie does not count";
  EXPECT_FALSE(has_process_exited(child));
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes(process_state::exited, child));
  waitpid(child, nullptr, 0);
}

TEST(process, start_time_distinguishes_processes_with_one_pid) {
  const std::uint64_t start = process_start_time(getpid());
  ASSERT_NE(start, 0U);
  errno = ESRCH;  // of an earlier call
  EXPECT_FALSE(has_process_exited(getpid(), start));
  EXPECT_EQ(read_process_state(getpid(), start), process_state::alive);
  EXPECT_TRUE(has_process_exited(getpid(), start + 1));
  EXPECT_EQ(read_process_state(getpid(), start + 1), process_state::exited);
}

TEST(process, pid_namespace_and_boot_id_are_those_of_the_kernel) {
  char link[64] = "";
  ASSERT_GT(readlink("/proc/self/ns/pid", link, sizeof link - 1), 0);
  EXPECT_EQ("pid:[" + std::to_string(current_pid_namespace()) + "]", link);
  EXPECT_EQ(current_boot_id().size(), 36u);
  EXPECT_EQ(current_boot_id(), current_boot_id());
}

}  // namespace
}  // namespace isthmus
