// Clock for the call path: the processor's time stamp counter if its rate is constant, otherwise the kernel's
// monotonic clock. Reading the counter takes one third of the time of the kernel's clock.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace isthmus {

// Returns the kernel's monotonic time in nanoseconds. All processes of a machine share this clock.
inline std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

#if defined(__x86_64__)
inline bool has_invariant_counter() noexcept {
  static const bool is_supported = [] {
    constexpr unsigned leaf = 0x80000007, invariant_bit = 1u << 8;  // in edx
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(leaf, &eax, &ebx, &ecx, &edx) != 0 && (edx & invariant_bit) != 0;
  }();
  return is_supported;
}

inline std::uint64_t read_ticks(bool use_counter) noexcept { return use_counter ? __rdtsc() : monotonic_ns(); }
#else
inline bool has_invariant_counter() noexcept { return false; }

inline std::uint64_t read_ticks(bool) noexcept { return monotonic_ns(); }
#endif

}  // namespace isthmus
