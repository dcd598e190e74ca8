// Copies of whole cache lines with the widest registers of the instruction set. Fewer instructions per line
// allow a core to keep more lines in flight. Included like base/formats.inc.hpp, with the same restrictions.
#include "kernels/interleave.inc.hpp"
#include "kernels/kernels.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace isthmus::cpu {
namespace {

inline constexpr std::size_t copy_line_bytes = 64;

#if defined(__AVX512F__)
template <store_mode Mode>
void copy_line(std::byte* to, const std::byte* from) {
  const __m512i line = _mm512_loadu_si512(from);
  if constexpr (Mode == store_mode::streaming)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  else
    _mm512_storeu_si512(to, line);
}
#elif defined(__AVX__)
template <store_mode Mode>
void copy_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* destination = reinterpret_cast<__m256i*>(to);
  const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
  if constexpr (Mode == store_mode::streaming)
    _mm256_stream_si256(destination, a), _mm256_stream_si256(destination + 1, b);
  else
    _mm256_storeu_si256(destination, a), _mm256_storeu_si256(destination + 1, b);
}
#elif defined(__SSE2__)
template <store_mode Mode>
void copy_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* destination = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  if constexpr (Mode == store_mode::streaming) {
    // Write whole lines, so that each write-combining buffer is flushed at once.
    _mm_stream_si128(destination, a), _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c), _mm_stream_si128(destination + 3, d);
  } else {
    _mm_storeu_si128(destination, a), _mm_storeu_si128(destination + 1, b);
    _mm_storeu_si128(destination + 2, c), _mm_storeu_si128(destination + 3, d);
  }
}
#else
template <store_mode Mode>
void copy_line(std::byte* to, const std::byte* from) {
  __builtin_memcpy(to, from, copy_line_bytes);
}
#endif

template <store_mode Mode, std::size_t Streams>
void copy_streams(const copy_range* ranges, std::size_t bytes) {
  interleave<Streams>(bytes,
                      [=](std::size_t begin, std::size_t end, [[maybe_unused]] std::size_t prefetch_distance) {
                        for (std::size_t s = 0; s < Streams; ++s)
                          for (std::size_t offset = begin; offset < end; offset += copy_line_bytes) {
#if defined(__PRFCHW__)
                            // Request lines that another core owns before they are written, so that several
                            // requests are in flight. Do not prefetch beyond the range: flags that peers poll
                            // follow it.
                            if (Mode == store_mode::cached && offset + prefetch_distance < bytes)
                              __builtin_prefetch(ranges[s].destination + offset + prefetch_distance, 1);
#endif
                            copy_line<Mode>(ranges[s].destination + offset, ranges[s].source + offset);
                          }
                      });
}

template <store_mode Mode>
void copy_by_stream_count(const copy_range* ranges, std::size_t streams, std::size_t bytes) {
  switch (streams) {
    case 3: copy_streams<Mode, 3>(ranges, bytes); break;
    case 2: copy_streams<Mode, 2>(ranges, bytes); break;
    default: copy_streams<Mode, 1>(ranges, bytes); break;
  }
}

void copy_lines(const copy_range* ranges, std::size_t streams, std::size_t bytes, store_mode mode) {
  if (mode == store_mode::streaming)
    copy_by_stream_count<store_mode::streaming>(ranges, streams, bytes);
  else
    copy_by_stream_count<store_mode::cached>(ranges, streams, bytes);
}

}  // namespace
}  // namespace isthmus::cpu
