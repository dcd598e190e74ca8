// Conversion of ticks to the kernel's monotonic clock, based on samples of both clocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "recorder/layout.hpp"

namespace isthmus::recorder {

// Reads all three clocks. Takes about 100 ns.
clock_sample sample_clocks(bool has_counter) noexcept;

class tick_scale {
 public:
  tick_scale(const clock_sample& first, const clock_sample& second, bool has_counter) : m_first(first) {
    if (has_counter && second.ticks > first.ticks && second.monotonic_ns > first.monotonic_ns)
      m_ns_per_tick = static_cast<double>(second.monotonic_ns - first.monotonic_ns) /
                      static_cast<double>(second.ticks - first.ticks);
  }
  // Converts ticks to nanoseconds of the monotonic clock; 0 stays 0.
  std::uint64_t ns_of(std::uint64_t ticks) const noexcept {
    if (ticks == 0) return 0;
    constexpr double limit_ns = 9e18;  // limits values of a damaged file
    const double elapsed_ns =
        std::clamp(static_cast<double>(static_cast<std::int64_t>(ticks - m_first.ticks)) * m_ns_per_tick,
                   -limit_ns, limit_ns);
    return m_first.monotonic_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(elapsed_ns));
  }

 private:
  clock_sample m_first;
  double m_ns_per_tick = 1;
};

}  // namespace isthmus::recorder
