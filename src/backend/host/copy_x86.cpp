#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/host/copy.hpp"

namespace isthmus::host {

void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept {
  constexpr std::size_t line = 64;
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  const std::size_t head = std::min(bytes, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= line; to += line, from += line, bytes -= line) {
    // a whole line at a time, so that the write-combining buffer leaves in one piece
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 1);
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 2);
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 3);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + 1, b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + 2, c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + 3, d);
  }
  std::memcpy(to, from, bytes);
}

void streaming_fence() noexcept { _mm_sfence(); }

}  // namespace isthmus::host
