// Copies of whole lines, with the widest registers of the instruction set: the fewer instructions a line
// takes, the more lines a core has under way. Included as base/formats.inc.hpp is, under the same restrictions.
#include "kernels/kernels.hpp"
#include "kernels/interleave.inc.hpp"

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
    // a whole line at a time, so that the write-combining buffer leaves in one piece
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
void copy_streams(const copy_range* pieces, std::size_t bytes) {
  interleave<Streams>(bytes, [=](std::size_t begin, std::size_t end, [[maybe_unused]] std::size_t prefetch_distance) {
    for (std::size_t s = 0; s < Streams; ++s)
      for (std::size_t offset = begin; offset < end; offset += copy_line_bytes) {
#if defined(__PRFCHW__)
        // A line that another core has is asked for some time before it is written, so that several requests
        // are under way. Not beyond the piece: there are flags that peers look at.
        if (Mode == store_mode::cached && offset + prefetch_distance < bytes) __builtin_prefetch(pieces[s].to + offset + prefetch_distance, 1);
#endif
        copy_line<Mode>(pieces[s].to + offset, pieces[s].from + offset);
      }
  });
}

template <store_mode Mode>
void copy_by_stream_count(const copy_range* pieces, std::size_t streams, std::size_t bytes) {
  switch (streams) {
    case 3: copy_streams<Mode, 3>(pieces, bytes); break;
    case 2: copy_streams<Mode, 2>(pieces, bytes); break;
    default: copy_streams<Mode, 1>(pieces, bytes); break;
  }
}

void copy_lines(const copy_range* pieces, std::size_t streams, std::size_t bytes, store_mode mode) {
  if (mode == store_mode::streaming)
    copy_by_stream_count<store_mode::streaming>(pieces, streams, bytes);
  else
    copy_by_stream_count<store_mode::cached>(pieces, streams, bytes);
}

}  // namespace
}  // namespace isthmus::cpu
