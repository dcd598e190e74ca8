// The clock of the measurements: the time stamp counter on x86, which is the cheapest, otherwise the steady
// clock, whose call takes up to a fifth of the time of the smallest collective.
#pragma once

#include <chrono>
#include <cstdint>
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

}  // namespace bench
