// The clock of the measurements: the time stamp counter on x86, which is the cheapest, otherwise the steady
// clock, whose call takes up to a fifth of the time of the smallest collective.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace bench {

inline std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

#if defined(__x86_64__)
// The fence prevents reading the counter before earlier loads complete.
inline std::uint64_t ticks() {
  _mm_lfence();
  const std::uint64_t now = __rdtsc();
  _mm_lfence();
  return now;
}
#else
inline std::uint64_t ticks() { return steady_ns(); }
#endif

// Nanoseconds per tick, measured once against the steady clock over 20 ms.
inline double ns_per_tick() {
  static const double ratio = [] {
    const std::uint64_t ns = steady_ns(), first = ticks();
    while (steady_ns() - ns < 20'000'000) {
    }
    const std::uint64_t last = ticks();
    return static_cast<double>(steady_ns() - ns) / static_cast<double>(last - first);
  }();
  return ratio;
}

// Time that this thread was runnable but another task had its core, or 0 if the kernel does not report it.
inline double run_delay_us() {
  std::uint64_t running_ns = 0, delay_ns = 0;
  std::ifstream("/proc/thread-self/schedstat") >> running_ns >> delay_ns;
  return static_cast<double>(delay_ns) / 1e3;
}

}  // namespace bench
