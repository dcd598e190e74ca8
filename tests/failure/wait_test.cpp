// Deadlines, polling, and the policy of hot waits.
#include "failure/wait.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace {

using namespace isthmus;
using namespace std::chrono_literals;

TEST(deadline_after, limits_large_timeouts) {
  const auto now = wait_clock::now();
  for (const double seconds : {1e9, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_GT(deadline_after(seconds), now + 24h);
    EXPECT_LT(deadline_after(seconds), now + 24h * 366);
  }
  const auto immediate_deadline = deadline_after(0.0);
  EXPECT_LE(immediate_deadline, wait_clock::now());
  EXPECT_GE(deadline_after(2.5), now + 2500ms);
}

TEST(poll_until, polls_once_after_the_deadline) {
  int polls = 0;
  EXPECT_FALSE(poll_until([&] { return ++polls > 1; }, wait_clock::now() - 1s, 1h));
  EXPECT_EQ(polls, 1);
  EXPECT_TRUE(poll_until([] { return true; }, wait_clock::now() - 1s, 1h));
}

TEST(poll_until, sleeps_between_polls_until_the_deadline) {
  const auto begin = wait_clock::now();
  int polls = 0;
  EXPECT_FALSE(poll_until([&] { return ++polls == 0; }, deadline_after(30ms), 5ms));
  EXPECT_GE(wait_clock::now() - begin, 30ms);
  EXPECT_GE(polls, 2);
  EXPECT_LE(polls, 7);
}

TEST(poll_until, doubles_the_pause_up_to_its_maximum) {
  const auto begin = wait_clock::now();
  int polls = 0;
  EXPECT_TRUE(poll_until([&] { return ++polls == 6; }, deadline_after(60.0), poll_pause(1ms, 4ms)));
  EXPECT_GE(wait_clock::now() - begin, 1ms + 2ms + 4ms + 4ms + 4ms);
}

TEST(poll_until, progress_skips_the_pause) {
  int polls = 0;
  const auto poll = [&] { return ++polls == 1000 ? poll_result::done : poll_result::progress; };
  EXPECT_TRUE(poll_until(poll, deadline_after(60.0), 1h));
  polls = 0;
  poll_until_done(poll, 1h);
  EXPECT_EQ(polls, 1000);
}

TEST(poll_until, passes_exceptions_on) {
  const auto poll = []() -> bool { throw std::runtime_error("failed"); };
  EXPECT_THROW(poll_until(poll, deadline_after(60.0), yielding), std::runtime_error);
  EXPECT_THROW(poll_until_done(poll, yielding), std::runtime_error);
}

TEST(sleep_until, returns_after_the_time) {
  const auto end = wait_clock::now() + 10ms;
  sleep_until(end);
  EXPECT_GE(wait_clock::now(), end);
  sleep_until(end);  // in the past
}

TEST(backoff, spins_below_its_limit) {
  backoff wait(200);
  int spins = 0, progress_rounds = 0;
  while (wait.spin()) {
    ++spins;
    progress_rounds += wait.is_progress_due() ? 1 : 0;
  }
  EXPECT_EQ(spins, 199);
  EXPECT_EQ(progress_rounds, 3);
  EXPECT_FALSE(wait.is_long());
  EXPECT_FALSE(backoff(0).spin());
}

TEST(backoff, stops_spinning_on_request) {
  backoff wait(1000);
  EXPECT_TRUE(wait.spin());
  wait.stop_spinning();
  EXPECT_FALSE(wait.spin());
}

TEST(backoff, yields_first_and_then_sleeps) {
  backoff wait(0, 2ms);
  EXPECT_EQ(wait.measure(), 0ns);
  EXPECT_TRUE(wait.is_long());
  while (wait.measure() < 2ms) wait.pause();
  const auto begin = wait_clock::now();
  wait.pause();
  EXPECT_GE(wait_clock::now() - begin, 50us);
}

TEST(backoff, sleeps_grow_up_to_a_millisecond) {
  constexpr int sleeps = 800;  // the last 30 take 1 ms each
  backoff wait(0, 0ms);
  wait.measure();
  const auto begin = wait_clock::now();
  for (int i = 0; i < sleeps; ++i) wait.pause();
  EXPECT_GE(wait_clock::now() - begin, 250ms);  // sleeps of 50 us take less than 100 ms
}

TEST(backoff, restarts_after_progress) {
  backoff wait(2);
  EXPECT_TRUE(wait.spin());
  EXPECT_FALSE(wait.spin());
  wait.measure();
  sleep_briefly(1ms);
  EXPECT_GE(wait.measure(), 1ms);
  wait.reset();
  EXPECT_FALSE(wait.is_long());
  EXPECT_TRUE(wait.spin());
  EXPECT_EQ(wait.measure(), 0ns);
}

}  // namespace
