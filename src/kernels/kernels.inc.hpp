// The kernels, written as plain loops that GCC vectorizes for the instruction set of the including translation
// unit. Everything has internal linkage; see base/formats.inc.hpp.
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base/formats.inc.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::cpu {
namespace {

// ---- order of memory accesses ------------------------------------------------------------------------------

// Hardware prefetchers follow sequential reads only within a page. Kernels therefore interleave blocks of
// several pages.
inline constexpr std::size_t interleaved_block_bytes = 512, page_bytes = 4096;
inline constexpr std::size_t concurrent_pages = 4;  // total over all streams

// Calls visit(begin, end, prefetch_distance) for all blocks. The block to prefetch starts `prefetch_distance`
// bytes after `begin`. It is the next block of the same page, or of the page after the current group of pages.
template <std::size_t Streams, typename Visit>
inline __attribute__((always_inline)) void interleave(std::size_t bytes, Visit visit) {
  constexpr std::size_t pages = Streams < concurrent_pages ? concurrent_pages / Streams : 1;
  for (std::size_t group_begin = 0; group_begin < bytes; group_begin += pages * page_bytes)
    for (std::size_t page_offset = 0; page_offset < page_bytes; page_offset += interleaved_block_bytes) {
      if (group_begin + page_offset >= bytes) break;
      const bool is_last = page_offset + interleaved_block_bytes == page_bytes;
      const std::size_t prefetch_distance = interleaved_block_bytes + (is_last ? (pages - 1) * page_bytes : 0);
      for (std::size_t page = 0; page < pages; ++page) {
        const std::size_t begin = group_begin + page * page_bytes + page_offset;
        if (begin >= bytes) break;
        visit(begin, bytes - begin < interleaved_block_bytes ? bytes : begin + interleaved_block_bytes,
              prefetch_distance);
      }
    }
}

// ---- copies of whole cache lines ---------------------------------------------------------------------------

// With the widest registers of the instruction set, and so few instructions per line, a core keeps more lines in flight.
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

// ---- reductions --------------------------------------------------------------------------------------------

// Integers wrap: they are computed as unsigned, in at least 32 bits, and converted back, which C++20 defines
// modulo 2^n.
template <typename Type>
auto to_wrapping(Type value) {
  if constexpr (std::is_integral_v<Type>)
    return static_cast<std::conditional_t<sizeof(Type) == 8, std::uint64_t, std::uint32_t>>(value);
  else
    return value;
}

// The part that all operations except avg share. `combine` of an operation applies it without `finish`.
struct plain_operation {
  template <typename Type>
  static Type finish(Type value, int) {
    return value;
  }
};

struct sum : plain_operation {
  using combine = sum;
  template <typename Type>
  static Type apply(Type a, Type b) {
    return static_cast<Type>(to_wrapping(a) + to_wrapping(b));
  }
};

struct prod : plain_operation {
  using combine = prod;
  template <typename Type>
  static Type apply(Type a, Type b) {
    return static_cast<Type>(to_wrapping(a) * to_wrapping(b));
  }
};

// The condition `b != b` selects b if it is a NaN. If a is a NaN, the comparison is false and a is kept.
struct min : plain_operation {
  using combine = min;
  template <typename Type>
  static Type apply(Type a, Type b) {
    return (b < a || b != b) ? b : a;
  }
};

struct max : plain_operation {
  using combine = max;
  template <typename Type>
  static Type apply(Type a, Type b) {
    return (b > a || b != b) ? b : a;
  }
};

struct avg : sum {
  static float finish(float value, int n) { return value / static_cast<float>(n); }
  static double finish(double value, int n) { return value / static_cast<double>(n); }
  static std::uint64_t finish(std::uint64_t value, int n) { return value / static_cast<std::uint64_t>(n); }
  template <typename Type>
  static Type finish(Type value, int n) {
    return static_cast<Type>(static_cast<std::int64_t>(value) / n);
  }
};

// Several sources in one pass. The pragma is valid because `out` can alias a source only element by element.
template <typename Format, typename Operation, int Sources>
void reduce_few(typename Format::storage* out, const void* const* sources, std::size_t count) {
  using storage = typename Format::storage;
  const storage* source[Sources];
  for (int s = 0; s < Sources; ++s) source[s] = static_cast<const storage*>(sources[s]);
  interleave<Sources>(count * sizeof(storage), [&](std::size_t begin, std::size_t end, std::size_t) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (std::size_t i = begin / sizeof(storage); i < end / sizeof(storage); ++i) {
      typename Format::accumulator value = Format::load(source[0][i]);
      for (int s = 1; s < Sources; ++s) value = Operation::apply(value, Format::load(source[s][i]));
      out[i] = Format::store(Operation::finish(value, Sources));
    }
  });
}

// Adds several sources to the accumulators in one pass, so that several pages are read concurrently.
template <typename Format, typename Operation, int Sources, bool IsFirst>
void accumulate(typename Format::accumulator* __restrict value, const void* const* sources, std::size_t begin,
                std::size_t length) {
  using storage = typename Format::storage;
  const storage* source[Sources];
  for (int s = 0; s < Sources; ++s) source[s] = static_cast<const storage*>(sources[s]) + begin;
  for (std::size_t i = 0; i < length; ++i) {
    typename Format::accumulator sum =
        IsFirst ? Format::load(source[0][i]) : Operation::apply(value[i], Format::load(source[0][i]));
    for (int s = 1; s < Sources; ++s) sum = Operation::apply(sum, Format::load(source[s][i]));
    value[i] = sum;
  }
}

// Many sources: the accumulators of one block stay in the L1 cache while the sources are streamed.
template <typename Format, typename Operation>
void reduce_many(typename Format::storage* out, const void* const* sources, int n, std::size_t count) {
  using combine = typename Operation::combine;
  using accumulator = typename Format::accumulator;
  constexpr std::size_t block = 4096 / sizeof(accumulator);
  constexpr int sources_per_pass = 4;
  alignas(64) accumulator value[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t length = count - begin < block ? count - begin : block;
    accumulate<Format, combine, sources_per_pass, true>(value, sources, begin, length);
    int s = sources_per_pass;
    for (; s + sources_per_pass <= n; s += sources_per_pass)
      accumulate<Format, combine, sources_per_pass, false>(value, sources + s, begin, length);
    for (; s < n; ++s) accumulate<Format, combine, 1, false>(value, sources + s, begin, length);
    for (std::size_t i = 0; i < length; ++i) out[begin + i] = Format::store(Operation::finish(value[i], n));
  }
}

template <typename Format, typename Operation>
void reduce(void* out_buffer, const void* const* sources, int n, std::size_t count) {
  auto* out = static_cast<typename Format::storage*>(out_buffer);
  switch (n) {
    // All operations have the same result. It is not a copy, because fp8 values saturate.
    case 1: reduce_few<Format, sum, 1>(out, sources, count); break;
    case 2: reduce_few<Format, Operation, 2>(out, sources, count); break;
    case 3: reduce_few<Format, Operation, 3>(out, sources, count); break;
    case 4: reduce_few<Format, Operation, 4>(out, sources, count); break;
    default: reduce_many<Format, Operation>(out, sources, n, count); break;
  }
}

// Sums and products of signed and unsigned integers have the same bits, so one function serves both.
template <typename Format>
struct wrapping_format : std::type_identity<Format> {};
template <typename Type>
  requires std::is_integral_v<Type>
struct wrapping_format<formats::native_format<Type>>
    : std::type_identity<formats::native_format<std::make_unsigned_t<Type>>> {};

constexpr kernel_table make_kernel_table(const char* name) {
  kernel_table table{name, &copy_lines, {}};
#define ISTHMUS_DATATYPE(dtype, DTYPE, bytes, kind)                          \
  {                                                                          \
    using format = typename formats::datatype_format<ISTHMUS_##DTYPE>::type; \
    using wrapping = typename wrapping_format<format>::type;                 \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_SUM] = &reduce<wrapping, sum>;     \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_PROD] = &reduce<wrapping, prod>;   \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_MIN] = &reduce<format, min>;       \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_MAX] = &reduce<format, max>;       \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_AVG] = &reduce<format, avg>;       \
  }
#include <isthmus/collectives.def>
  return table;
}

}  // namespace
}  // namespace isthmus::cpu
