// Waits: deadlines, polling with a pause, and the spin and sleep policy of hot waits. The only file of src that
// yields a core or sleeps; scripts/check_layers.py enforces it. Waits on condition variables are not affected.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace isthmus {

using wait_clock = std::chrono::steady_clock;

// Limits large timeouts, which would overflow the clock.
inline wait_clock::time_point deadline_after(std::chrono::duration<double> timeout) noexcept {
  constexpr std::chrono::duration<double> max_timeout = std::chrono::hours(24 * 365);
  return wait_clock::now() +
         std::chrono::duration_cast<wait_clock::duration>(timeout < max_timeout ? timeout : max_timeout);
}
inline wait_clock::time_point deadline_after(double seconds) noexcept {
  return deadline_after(std::chrono::duration<double>(seconds));
}

// Hint for the processor in a spin loop.
#if defined(__x86_64__)
inline void relax_core() noexcept { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
inline void relax_core() noexcept { __asm__ __volatile__("isb" ::: "memory"); }
#else
inline void relax_core() noexcept {}
#endif

inline void yield_core() noexcept { ::sched_yield(); }

// A signal can end the sleep early.
inline void sleep_briefly(std::chrono::nanoseconds time) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec request{static_cast<std::time_t>(seconds.count()),
                         static_cast<long>((time - seconds).count())};
  ::nanosleep(&request, nullptr);
}
inline void sleep_until(wait_clock::time_point time) noexcept {
  for (auto now = wait_clock::now(); now < time; now = wait_clock::now()) sleep_briefly(time - now);
}

// ---- polling -------------------------------------------------------------------------------------------

// Pause between two polls: yields the core if the time is 0, and otherwise sleeps. The time doubles up to `max`.
class poll_pause {
 public:
  template <typename Rep, typename Period>
  constexpr poll_pause(std::chrono::duration<Rep, Period> time) noexcept : m_time(time), m_max(time) {}
  constexpr poll_pause(std::chrono::nanoseconds first, std::chrono::nanoseconds max) noexcept
      : m_time(first), m_max(max) {}

  void operator()() noexcept {
    if (m_time.count() == 0) return yield_core();
    sleep_briefly(m_time);
    m_time = std::min(2 * m_time, m_max);
  }

 private:
  std::chrono::nanoseconds m_time, m_max;
};
inline constexpr poll_pause yielding{std::chrono::nanoseconds(0)};

enum class poll_result : std::uint8_t {
  pending,
  progress,  // poll again without a pause
  done
};
constexpr poll_result to_poll_result(poll_result result) noexcept { return result; }
constexpr poll_result to_poll_result(bool is_done) noexcept {
  return is_done ? poll_result::done : poll_result::pending;
}

// Calls `poll`, which returns bool or poll_result, until it is done. Returns false if the deadline passes first.
// Calls `poll` at least once.
template <typename Poll>
bool poll_until(Poll&& poll, wait_clock::time_point deadline, poll_pause pause) {
  while (true) {
    const poll_result result = to_poll_result(poll());
    if (result == poll_result::done) return true;
    if (wait_clock::now() >= deadline) return false;
    if (result == poll_result::pending) pause();
  }
}

// Without a deadline: `poll` must end the wait, for example after a failure.
template <typename Poll>
void poll_until_done(Poll&& poll, poll_pause pause) {
  for (poll_result result{}; (result = to_poll_result(poll())) != poll_result::done;)
    if (result == poll_result::pending) pause();
}

// ---- hot waits -----------------------------------------------------------------------------------------

// Policy of one hot wait. The wait spins for less than `spin_limit` rounds, then yields its core for
// `yield_time`, and then sleeps between two rounds. The first sleep takes 50 us. Every other sleep is 1/256 longer
// than the one before, up to 1 ms. Waits of more than 25 ms therefore end at most about 0.5 % late, and leave
// the core to other ranks:
//
//   for (backoff wait(limit); !is_ready();)
//     if (wait.spin()) {
//       if (wait.is_progress_due()) make_progress();
//     } else {
//       if (wait.measure() > timeout) fail();
//       wait.pause(make_progress());
//     }
class backoff {
 public:
  static constexpr std::uint64_t spins_per_progress = 64;  // some microseconds

  explicit backoff(std::uint64_t spin_limit,
                   wait_clock::duration yield_time = std::chrono::milliseconds(5)) noexcept
      : m_spin_limit(spin_limit), m_yield_time(yield_time) {}

  // Counts a round. Returns false once the wait no longer spins.
  bool spin() noexcept { return ++m_rounds < m_spin_limit; }
  bool is_progress_due() const noexcept { return m_rounds % spins_per_progress == 0; }
  std::uint64_t rounds() const noexcept { return m_rounds; }
  void stop_spinning() noexcept { m_rounds = m_spin_limit; }

  // Returns true after the first call of measure().
  bool is_long() const noexcept { return m_is_long; }
  // Returns the time since the first call after the wait has stopped spinning.
  wait_clock::duration measure() noexcept {
    const auto now = wait_clock::now();
    if (!m_is_long) m_begin = now;
    m_is_long = true;
    return m_waited = now - m_begin;
  }
  // Yields, or sleeps if the latest measure() exceeds the yield time and there was no other work.
  void pause(bool has_worked = false) noexcept {
    if (has_worked || m_waited < m_yield_time) {
      m_sleep_time = min_sleep_time;
      return yield_core();
    }
    sleep_briefly(m_sleep_time);
    m_sleep_time = std::min(m_sleep_time + m_sleep_time / 256, max_sleep_time);
  }
  // Restarts the wait after progress.
  void reset() noexcept {
    m_rounds = 0;
    m_is_long = false;
    m_sleep_time = min_sleep_time;
  }

 private:
  static constexpr std::chrono::nanoseconds min_sleep_time{50'000}, max_sleep_time{1'000'000};

  std::uint64_t m_rounds = 0, m_spin_limit;
  std::chrono::nanoseconds m_sleep_time = min_sleep_time;
  wait_clock::duration m_yield_time, m_waited{};
  wait_clock::time_point m_begin;
  bool m_is_long = false;
};

}  // namespace isthmus
