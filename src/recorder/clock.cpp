#include "recorder/clock.hpp"

#include <ctime>

#include "base/ticks.hpp"

namespace isthmus::recorder {
namespace {

std::uint64_t realtime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

// The thread may be preempted between two readings, so use the shortest of several tries.
clock_sample sample_clocks(bool has_counter) noexcept {
  constexpr int max_tries = 3;
  constexpr std::uint64_t short_ticks = 1000;
  clock_sample best{};
  std::uint64_t min_ticks = ~std::uint64_t{0};
  for (int i = 0; i < max_tries && min_ticks > short_ticks; ++i) {
    const std::uint64_t before = read_ticks(has_counter);
    const std::uint64_t monotonic = monotonic_ns();
    const std::uint64_t after = read_ticks(has_counter);
    if (after - before >= min_ticks) continue;
    min_ticks = after - before;
    best = {before + min_ticks / 2, monotonic, 0};
  }
  best.realtime_ns = realtime_ns() - (monotonic_ns() - best.monotonic_ns);
  return best;
}

}  // namespace isthmus::recorder
