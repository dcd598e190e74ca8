// Copies with cached or streaming stores.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/kernels.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace isthmus::shm {

using cpu::copy_range;
using cpu::store_mode;

// Orders streaming stores before later stores.
#if defined(__SSE2__)
inline void streaming_fence() noexcept { _mm_sfence(); }
#else
inline void streaming_fence() noexcept {}
#endif

// Acquires exclusive ownership of a line. For baseline processors, compilers emit only a prefetch for reading.
#if defined(__x86_64__)
inline void prefetch_to_write(const void* line) noexcept { __asm__ __volatile__("prefetchw (%0)" ::"r"(line)); }
#else
inline void prefetch_to_write(const void* line) noexcept { __builtin_prefetch(line, 1); }
#endif

// Copies all ranges, interleaving a few of them line by line. A core that reads several distant streams at once
// has more cache misses in flight than a core that reads one stream after the other.
void copy_interleaved(std::span<const copy_range> ranges, store_mode mode) noexcept;

// Does nothing if source and destination are the same, as in in-place operations.
inline void copy(void* destination, const void* source, std::size_t bytes, store_mode mode) noexcept {
  if (destination == source || bytes == 0) return;
  if (mode == store_mode::cached) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const copy_range range{static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes};
  copy_interleaved({&range, 1}, mode);
}

}  // namespace isthmus::shm
