// Tests the watchdog with simulated streams.
#include "failure/watchdog.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/completion_events.hpp"

namespace {

using namespace std::chrono_literals;
using isthmus::completion_events;
using isthmus::watch;
using isthmus::watch_options;
using isthmus::watchdog_clock;

// Waits until `ready` returns true. The limit is so long that only a bug can exceed it.
template <typename Ready>
testing::AssertionResult becomes_true(Ready&& ready) {
  for (const auto end = watchdog_clock::now() + 30s; watchdog_clock::now() < end;
       std::this_thread::sleep_for(1ms))
    if (ready()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the condition did not become true within 30 s";
}

watch_options quick_options(std::atomic<std::uint64_t>& operation, std::chrono::duration<double> timeout) {
  watch_options options;
  options.timeout = timeout;
  options.interval = 2ms;
  options.operation = [&operation]() -> isthmus::watched_operation { return {operation, {}}; };
  options.on_stuck = [](std::uint64_t) { return true; };
  return options;
}

TEST(watchdog, operation_past_its_timeout_is_stuck) {
  std::atomic<std::uint64_t> operation{7}, stuck{0};
  watch_options options = quick_options(operation, 50ms);
  options.on_stuck = [&](std::uint64_t id) {
    stuck = id;
    return true;
  };
  const auto begin = watchdog_clock::now();
  const watch watching(std::move(options));
  ASSERT_TRUE(becomes_true([&] { return stuck != 0; }));
  EXPECT_EQ(stuck, 7u);
  EXPECT_GE(watchdog_clock::now() - begin, 50ms);
}

TEST(watchdog, successive_operations_are_not_stuck) {
  std::atomic<std::uint64_t> operation{1};
  std::atomic<int> stuck{0}, checks{0};
  watch_options options = quick_options(operation, 1h);
  options.operation = [&]() -> isthmus::watched_operation {
    ++checks;
    return {++operation, {}};  // a different operation at each check
  };
  options.timeout = 0.5ms;
  options.on_stuck = [&](std::uint64_t) { return ++stuck > 0; };
  {
    const watch watching(std::move(options));
    ASSERT_TRUE(becomes_true([&] { return checks > 50; }));
  }
  EXPECT_EQ(stuck, 0);
}

// A captured call has the same id in every replay.
TEST(watchdog, reused_id_restarts_the_timeout) {
  std::atomic<std::uint64_t> operation{5};
  std::mutex mutex;
  std::vector<watchdog_clock::time_point> reports;
  watch_options options = quick_options(operation, 30ms);
  options.on_stuck = [&](std::uint64_t) {
    const std::lock_guard lock(mutex);
    reports.push_back(watchdog_clock::now());
    return false;
  };
  const watch watching(std::move(options));
  ASSERT_TRUE(becomes_true([&] {
    const std::lock_guard lock(mutex);
    return reports.size() >= 3;
  }));
  const std::lock_guard lock(mutex);
  EXPECT_GE(reports[2] - reports[0], 60ms);
}

TEST(watchdog, timeout_counts_from_a_known_start_time) {
  std::atomic<int> stuck{0};
  std::atomic<std::uint64_t> operation{1};
  watch_options options = quick_options(operation, 1h);
  options.operation = []() -> isthmus::watched_operation { return {1, watchdog_clock::now() - 2h}; };
  options.on_stuck = [&](std::uint64_t) { return ++stuck > 0; };
  const watch watching(std::move(options));
  EXPECT_TRUE(becomes_true([&] { return stuck > 0; }));
}

TEST(watchdog, on_wait_runs_before_the_timeout) {
  std::atomic<std::uint64_t> operation{3};
  std::atomic<int> waits{0};
  watch_options options = quick_options(operation, 1h);
  options.wait_interval = 5ms;
  options.on_wait = [&](std::uint64_t id) { waits += id == 3 ? 1 : 0; };
  const watch watching(std::move(options));
  EXPECT_TRUE(becomes_true([&] { return waits >= 3; }));
}

TEST(watchdog, on_abort_runs_until_it_returns_true) {
  std::atomic<std::uint64_t> operation{1};
  std::atomic<bool> aborted{false};
  std::atomic<int> releases{0}, checks{0};
  watch_options options = quick_options(operation, 1h);
  options.aborted = [&] {
    ++checks;
    return aborted.load();
  };
  options.on_abort = [&] { return ++releases == 3; };
  options.interval = 1h;
  watch watching(std::move(options));
  ASSERT_TRUE(becomes_true([&] { return checks > 0; }));
  EXPECT_EQ(releases, 0);
  aborted = true;
  for (int i = 1; i <= 10; ++i) {
    const int previous = checks;
    watching.wake();
    ASSERT_TRUE(becomes_true([&] { return checks > previous; })) << "wake() must trigger a check";
  }
  EXPECT_EQ(releases, 3);
}

// A library may take seconds to end its kernels. Other streams must be released in the meantime.
TEST(watchdog, slow_actions_do_not_delay_other_watches) {
  std::atomic<std::uint64_t> operation{1};
  std::atomic<bool> may_continue{false}, failed{false};
  std::atomic<int> entry_count{0}, released{0}, other_count{0};
  watch_options slow = quick_options(operation, 1ms);
  slow.has_slow_actions = true;
  slow.on_stuck = [&](std::uint64_t) {
    ++entry_count;
    failed = true;
    while (!may_continue) std::this_thread::sleep_for(1ms);
    return true;
  };
  slow.aborted = [&] { return failed.load(); };
  slow.on_abort = [&] {
    ++released;
    return false;
  };
  watch_options other_options = quick_options(operation, 1ms);
  other_options.on_stuck = [&](std::uint64_t) { return ++other_count > 0; };
  {
    const watch first(std::move(slow)), second(std::move(other_options));
    EXPECT_TRUE(becomes_true([&] { return entry_count == 1 && released > 2; }));
    const int previous = other_count;
    EXPECT_TRUE(becomes_true([&] { return other_count > previous + 2; }));
    may_continue = true;
  }
  EXPECT_EQ(entry_count, 1);
}

TEST(watchdog, exceptions_are_reported_to_on_error) {
  std::atomic<std::uint64_t> operation{1};
  std::mutex mutex;
  std::string message;
  watch_options options = quick_options(operation, 1h);
  options.operation = []() -> isthmus::watched_operation { throw std::runtime_error("no such device"); };
  options.on_error = [&](const char* text) {
    const std::lock_guard lock(mutex);
    message = text;
  };
  const watch watching(std::move(options));
  EXPECT_TRUE(becomes_true([&] {
    const std::lock_guard lock(mutex);
    return message == "no such device";
  }));
}

// Many threads create and destroy watches. No function of a watch may be called after its destruction.
TEST(watchdog, no_function_is_called_after_destruction) {
  std::vector<std::jthread> threads;
  std::atomic<int> late_count{0};
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        const auto alive = std::make_shared<std::atomic<bool>>(true);
        watch_options options;
        options.interval = 1ms;
        options.timeout = 0s;
        options.has_slow_actions = round % 2 == 0;
        options.operation = [&late_count, alive]() -> isthmus::watched_operation {
          late_count += *alive ? 0 : 1;
          return {1, {}};
        };
        options.on_stuck = [&late_count, alive](std::uint64_t) {
          late_count += *alive ? 0 : 1;
          return true;
        };
        {
          watch watching(std::move(options));
          watching.wake();
          if (round % 10 == 0) std::this_thread::sleep_for(2ms);
        }
        *alive = false;
      }
    });
  threads.clear();
  EXPECT_EQ(late_count, 0);
}

#if defined(__SANITIZE_THREAD__)
constexpr bool threads_after_fork = false;  // the sanitizer's runtime does not allow them
#else
constexpr bool threads_after_fork = true;
#endif

// fork does not copy threads: a child has its own watchdog thread, and its exit must not wait for the parent's.
TEST(watchdog, forked_child_has_its_own_watchdog) {
  if (!threads_after_fork) GTEST_SKIP() << "this sanitizer does not allow threads after fork";
  std::atomic<std::uint64_t> operation{1};
  std::atomic<int> checks{0};
  watch_options options = quick_options(operation, 1h);
  options.operation = [&]() -> isthmus::watched_operation {
    ++checks;
    return {};
  };
  auto parents = std::make_unique<watch>(std::move(options));
  ASSERT_TRUE(becomes_true([&] { return checks > 0; }));
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> stuck{0};
    watch_options own = quick_options(operation, 1ms);
    own.on_stuck = [&](std::uint64_t) { return ++stuck > 0; };
    {
      const watch watching(std::move(own));
      if (!becomes_true([&] { return stuck > 0; })) std::_Exit(1);
    }
    parents->wake();
    parents.reset();
    std::exit(0);  // runs all exit handlers
  }
  int status = -1;
  EXPECT_TRUE(becomes_true([&] { return waitpid(child, &status, WNOHANG) == child; }));
  if (status == -1) kill(child, SIGKILL);
  EXPECT_EQ(status, 0);
  const int previous = checks;
  EXPECT_TRUE(becomes_true([&] { return checks > previous; })) << "the parent's watchdog must continue";
}

// ---- completion events ---------------------------------------------------------------------------------

TEST(completion_events, keep_one_per_second_and_the_newest) {
  completion_events<int> events;
  const auto begin = watchdog_clock::now();
  for (int i = 0; i <= 2050; ++i) events.add(i, begin + i * 1ms);
  std::vector<int> remaining;
  for (; !events.empty(); events.drop_oldest()) remaining.push_back(events.oldest_event());
  ASSERT_GE(remaining.size(), 3u);
  EXPECT_LE(remaining.size(), 5u);
  EXPECT_EQ(remaining.front(), 0);
  EXPECT_EQ(remaining.back(), 2050);
}

// A peer is killed right after the last call of the first second. No call follows.
TEST(completion_events, last_call_of_a_second_is_watched) {
  std::mutex mutex;
  completion_events<bool> ends;  // whether the stream has passed them
  std::atomic<bool> aborted{false};
  watch_options options;
  options.timeout = 40ms;
  options.interval = 2ms;
  options.operation = [&]() -> isthmus::watched_operation {
    const std::lock_guard lock(mutex);
    while (!ends.empty() && watchdog_clock::now() - *ends.oldest().start_time >= 40ms && ends.oldest_event())
      ends.drop_oldest();
    return ends.empty() ? isthmus::watched_operation{} : ends.oldest();
  };
  options.on_stuck = [&](std::uint64_t) { return aborted = true; };
  const watch watching(std::move(options));
  {
    const std::lock_guard lock(mutex);
    for (int call = 0; call < 5; ++call) ends.add(true, watchdog_clock::now());
    ends.add(false, watchdog_clock::now());
  }
  EXPECT_TRUE(becomes_true([&] { return aborted.load(); }));
}

}  // namespace
