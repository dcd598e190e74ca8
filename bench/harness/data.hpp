// Random inputs from a counter: element i of rank r in call c is a function of (seed, c, r, i) alone, so
// any rank can compute any other rank's input and a buffer is filled at memory speed.
//
// Integers are uniform over all bits. Floating elements have a random sign and mantissa and one of four
// exponents (magnitudes in [1/8, 2)): sums neither overflow nor become exact, so order and rounding show.
#pragma once

#include <isthmus/types.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace bench {

// Layout of the IEEE-like formats narrower than float.
struct float_format {
  int exponent_bits, mantissa_bits;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr double epsilon() const { return 1.0 / static_cast<double>(std::uint64_t{1} << mantissa_bits); }
};

template <isthmus_datatype Datatype>
struct element;  // bits: the unsigned type of the element; value: what it stands for

template <typename Bits, typename Value>
struct integer_element {
  using bits = Bits;
  using value = Value;
  static constexpr bool floating = false;
  static bits random(std::uint32_t low, std::uint32_t high) {
    return static_cast<bits>(sizeof(Bits) == 8 ? (std::uint64_t{high} << 32 | low) : low);
  }
  static value decode(bits raw) { return std::bit_cast<value>(raw); }
};

// `four_lowest`: the random exponents are bias - 3 ... bias.
template <typename Bits, int ExponentBits, int MantissaBits>
struct floating_element {
  using bits = Bits;
  using value = double;
  static constexpr bool floating = true;
  static constexpr float_format format{ExponentBits, MantissaBits};
  static bits random(std::uint32_t low, std::uint32_t high) {
    const std::uint64_t raw = sizeof(Bits) == 8 ? (std::uint64_t{high} << 32 | low) : low;
    constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << MantissaBits) - 1;
    const std::uint64_t mantissa = raw & mantissa_mask;
    const std::uint64_t exponent = static_cast<std::uint64_t>(format.bias() - 3) + (raw >> MantissaBits & 3);
    const std::uint64_t sign = raw >> (MantissaBits + 2) & 1;
    return static_cast<bits>(sign << (ExponentBits + MantissaBits) | exponent << MantissaBits | mantissa);
  }
};

template <>
struct element<ISTHMUS_INT8> : integer_element<std::uint8_t, std::int8_t> {};
template <>
struct element<ISTHMUS_INT16> : integer_element<std::uint16_t, std::int16_t> {};
template <>
struct element<ISTHMUS_INT32> : integer_element<std::uint32_t, std::int32_t> {};
template <>
struct element<ISTHMUS_INT64> : integer_element<std::uint64_t, std::int64_t> {};
template <>
struct element<ISTHMUS_UINT8> : integer_element<std::uint8_t, std::uint8_t> {};
template <>
struct element<ISTHMUS_UINT16> : integer_element<std::uint16_t, std::uint16_t> {};
template <>
struct element<ISTHMUS_UINT32> : integer_element<std::uint32_t, std::uint32_t> {};
template <>
struct element<ISTHMUS_UINT64> : integer_element<std::uint64_t, std::uint64_t> {};

template <>
struct element<ISTHMUS_FLOAT32> : floating_element<std::uint32_t, 8, 23> {
  static double decode(std::uint32_t raw) { return std::bit_cast<float>(raw); }
};
template <>
struct element<ISTHMUS_FLOAT64> : floating_element<std::uint64_t, 11, 52> {
  static double decode(std::uint64_t raw) { return std::bit_cast<double>(raw); }
};

// Formats without a C++ type: decoded by their definition, once for each bit pattern. `has_infinity` is
// false for float8_e4m3 (OCP "FN"), whose only NaN is all ones and whose highest exponent is finite.
template <typename Base, bool HasInfinity>
struct small_element : Base {
  using bits = typename Base::bits;
  static double decode(bits raw) {
    static const std::vector<double> values = [] {
      std::vector<double> all(std::size_t{1} << (8 * sizeof(bits)));
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = by_definition(static_cast<unsigned>(i));
      return all;
    }();
    return values[raw];
  }

 private:
  static double by_definition(unsigned raw) {
    constexpr float_format format = Base::format;
    const unsigned mantissa_mask = (1u << format.mantissa_bits) - 1;
    const unsigned exponent_mask = (1u << format.exponent_bits) - 1;
    const unsigned mantissa = raw & mantissa_mask, exponent = raw >> format.mantissa_bits & exponent_mask;
    const bool negative = raw >> (format.exponent_bits + format.mantissa_bits) & 1;
    const bool highest = exponent == exponent_mask;
    if (highest && (HasInfinity ? mantissa != 0 : mantissa == mantissa_mask))
      return std::numeric_limits<double>::quiet_NaN();
    double magnitude = highest && HasInfinity
                           ? std::numeric_limits<double>::infinity()
                           : std::ldexp(exponent == 0 ? mantissa : mantissa + mantissa_mask + 1.0,
                                        (exponent == 0 ? 1 : static_cast<int>(exponent)) - format.bias() -
                                            format.mantissa_bits);
    return negative ? -magnitude : magnitude;
  }
};

template <>
struct element<ISTHMUS_FLOAT16> : small_element<floating_element<std::uint16_t, 5, 10>, true> {};
template <>
struct element<ISTHMUS_BFLOAT16> : small_element<floating_element<std::uint16_t, 8, 7>, true> {};
template <>
struct element<ISTHMUS_FLOAT8_E4M3> : small_element<floating_element<std::uint8_t, 4, 3>, false> {};
template <>
struct element<ISTHMUS_FLOAT8_E5M2> : small_element<floating_element<std::uint8_t, 5, 2>, true> {};

// Calls `function` with element<datatype>.
template <typename Function>
auto with_element(isthmus_datatype datatype, Function&& function) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return function(element<ISTHMUS_##NAME>{});
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  throw std::invalid_argument("unknown datatype");
}

// One bijective mix of 32 bits (the finaliser of MurmurHash3); the compiler vectorises it.
inline std::uint32_t mix(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// Names one stream of numbers: what (seed, call, rank) have in common.
struct stream_key {
  std::uint32_t low, high;
  stream_key(std::uint64_t seed, std::uint64_t call, int rank) {
    const auto rank_bits = static_cast<std::uint32_t>(rank) + 1;
    low = mix(mix(mix(static_cast<std::uint32_t>(seed)) + static_cast<std::uint32_t>(call)) + rank_bits);
    high = mix(low ^ mix(static_cast<std::uint32_t>(seed >> 32) + 0x9e3779b9u));
  }
};

// The multiplier makes the windows of two streams differ even where their keys are close.
template <typename Element>
typename Element::bits random_bits(stream_key key, std::uint32_t index) {
  const std::uint32_t low = mix(index * 0x9e3779b1u + key.low);
  if constexpr (sizeof(typename Element::bits) == 8) return Element::random(low, mix(low + key.high));
  return Element::random(low, 0);
}

template <typename Element>
void fill(typename Element::bits* data, std::uint64_t count, stream_key key) {
  for (std::uint64_t i = 0; i < count; ++i) data[i] = random_bits<Element>(key, static_cast<std::uint32_t>(i));
}

inline void fill(isthmus_datatype datatype, void* data, std::uint64_t count, stream_key key) {
  with_element(datatype, [&](auto type) {
    using element_type = decltype(type);
    fill<element_type>(static_cast<typename element_type::bits*>(data), count, key);
  });
}

}  // namespace bench
