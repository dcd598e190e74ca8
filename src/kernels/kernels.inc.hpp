// The kernels, written as plain loops that GCC vectorizes for the instruction set of the including translation
// unit. Everything has internal linkage; see base/formats.inc.hpp.
#include "base/formats.inc.hpp"
#include "kernels/copy.inc.hpp"
#include "kernels/interleave.inc.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::cpu {
namespace {

// Integers wrap: they are computed as unsigned and converted back, which C++20 defines modulo 2^n.
template <typename Type>
struct unsigned_of {
  using type = Type;
};
template <>
struct unsigned_of<std::int8_t> {
  using type = std::uint32_t;
};
template <>
struct unsigned_of<std::int16_t> {
  using type = std::uint32_t;
};
template <>
struct unsigned_of<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct unsigned_of<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct unsigned_of<std::uint8_t> {
  using type = std::uint32_t;
};
template <>
struct unsigned_of<std::uint16_t> {
  using type = std::uint32_t;
};

struct sum {
  template <typename Type>
  static Type apply(Type a, Type b) {
    using wide = typename unsigned_of<Type>::type;
    return static_cast<Type>(static_cast<wide>(a) + static_cast<wide>(b));
  }
  template <typename Type>
  static Type finish(Type value, int) {
    return value;
  }
};

struct prod {
  template <typename Type>
  static Type apply(Type a, Type b) {
    using wide = typename unsigned_of<Type>::type;
    return static_cast<Type>(static_cast<wide>(a) * static_cast<wide>(b));
  }
  template <typename Type>
  static Type finish(Type value, int) {
    return value;
  }
};

// The condition `b != b` selects b if it is a NaN. If a is a NaN, the comparison is false and a is kept.
struct min {
  template <typename Type>
  static Type apply(Type a, Type b) {
    return (b < a || b != b) ? b : a;
  }
  template <typename Type>
  static Type finish(Type value, int) {
    return value;
  }
};

struct max {
  template <typename Type>
  static Type apply(Type a, Type b) {
    return (b > a || b != b) ? b : a;
  }
  template <typename Type>
  static Type finish(Type value, int) {
    return value;
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

template <typename Format, typename Operation>
struct kernel {
  using storage = typename Format::storage;
  using accumulator = typename Format::accumulator;

  // Few sources: one pass. ivdep is valid because `out` can alias a source only element by element.
  template <int Sources>
  static void reduce_few(storage* out, const void* const* sources, std::size_t count) {
    const storage* source[Sources];
    for (int s = 0; s < Sources; ++s) source[s] = static_cast<const storage*>(sources[s]);
    interleave<Sources>(count * sizeof(storage), [&](std::size_t begin, std::size_t end, std::size_t) {
#pragma GCC ivdep
      for (std::size_t i = begin / sizeof(storage); i < end / sizeof(storage); ++i) {
        accumulator value = Format::load(source[0][i]);
        for (int s = 1; s < Sources; ++s) value = Operation::apply(value, Format::load(source[s][i]));
        out[i] = Format::store(Operation::finish(value, Sources));
      }
    });
  }

  // Adds several sources to the accumulators in one pass, so that several pages are read concurrently.
  template <int Sources, bool IsFirst>
  static void accumulate(accumulator* value, const void* const* sources, std::size_t begin,
                         std::size_t length) {
    const storage* source[Sources];
    for (int s = 0; s < Sources; ++s) source[s] = static_cast<const storage*>(sources[s]) + begin;
    for (std::size_t i = 0; i < length; ++i) {
      accumulator sum =
          IsFirst ? Format::load(source[0][i]) : Operation::apply(value[i], Format::load(source[0][i]));
      for (int s = 1; s < Sources; ++s) sum = Operation::apply(sum, Format::load(source[s][i]));
      value[i] = sum;
    }
  }

  // Many sources: the accumulators of one block stay in the L1 cache while the sources are streamed.
  static void reduce_many(storage* out, const void* const* sources, int n, std::size_t count) {
    constexpr std::size_t block = 4096 / sizeof(accumulator);
    constexpr int sources_per_pass = 4;
    alignas(64) accumulator value[block];
    for (std::size_t begin = 0; begin < count; begin += block) {
      const std::size_t length = count - begin < block ? count - begin : block;
      accumulate<sources_per_pass, true>(value, sources, begin, length);
      int s = sources_per_pass;
      for (; s + sources_per_pass <= n; s += sources_per_pass)
        accumulate<sources_per_pass, false>(value, sources + s, begin, length);
      for (; s < n; ++s) accumulate<1, false>(value, sources + s, begin, length);
      for (std::size_t i = 0; i < length; ++i) out[begin + i] = Format::store(Operation::finish(value[i], n));
    }
  }

  static void reduce(void* out_buffer, const void* const* sources, int n, std::size_t count) {
    auto* out = static_cast<storage*>(out_buffer);
    switch (n) {
      case 1: reduce_few<1>(out, sources, count); break;  // not a copy, because fp8 values saturate
      case 2: reduce_few<2>(out, sources, count); break;
      case 3: reduce_few<3>(out, sources, count); break;
      case 4: reduce_few<4>(out, sources, count); break;
      default: reduce_many(out, sources, n, count); break;
    }
  }
};

constexpr kernel_table make_kernel_table(const char* name) {
  kernel_table table{name, &copy_lines, {}};
#define ISTHMUS_DATATYPE(dtype, DTYPE, bytes, kind)                              \
  {                                                                              \
    using format = typename formats::datatype_format<ISTHMUS_##DTYPE>::type;     \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_SUM] = &kernel<format, sum>::reduce;   \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_PROD] = &kernel<format, prod>::reduce; \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_MIN] = &kernel<format, min>::reduce;   \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_MAX] = &kernel<format, max>::reduce;   \
    table.reduce[ISTHMUS_##DTYPE][ISTHMUS_AVG] = &kernel<format, avg>::reduce;   \
  }
#include <isthmus/collectives.def>
  return table;
}

}  // namespace
}  // namespace isthmus::cpu
