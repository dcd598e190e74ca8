// Conversion of elements to accumulators and back, including the 16-bit and 8-bit floating-point formats.
//
// Linkage: each kernel translation unit is compiled for one instruction set. Everything here therefore has
// internal linkage and calls no function of the standard library. Otherwise the linker could merge code for one
// instruction set into another.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <type_traits>

namespace isthmus::formats {
namespace {

inline std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float float_from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Integers and native floating-point types are their own accumulators.
template <typename Type>
struct native_format {
  using storage = Type;
  using accumulator = Type;
  static accumulator load(storage value) { return value; }
  static storage store(accumulator value) { return value; }
};

struct bfloat16_format {
  using storage = std::uint16_t;
  using accumulator = float;
  static float load(storage value) { return float_from_bits(static_cast<std::uint32_t>(value) << 16); }
  static storage store(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // nearest even
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return static_cast<storage>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

// Binary floating-point formats smaller than float32. Subnormals are supported without arithmetic on float32
// subnormals. That would be slow, and it would fail if the user enabled flush-to-zero.
//   MaxBits      result of overflow: infinity, or the largest finite value for the fp8 types
//   NanFrom      smallest magnitude that is NaN
//   HasInfinity  the largest exponent is reserved for infinity and NaN, as in IEEE 754
template <typename Storage, int ExponentBits, int MantissaBits, std::uint32_t MaxBits, std::uint32_t NanFrom,
          std::uint32_t NanBits, bool HasInfinity>
struct small_format {
  using storage = Storage;
  using accumulator = float;
  static constexpr int width = 1 + ExponentBits + MantissaBits;
  static constexpr int shift = 23 - MantissaBits;
  static constexpr std::uint32_t sign_bit = 1u << (width - 1);
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << 23;
  static constexpr std::uint32_t smallest_normal = rebias + (1u << 23);
  static constexpr std::uint32_t infinity = ((1u << ExponentBits) - 1u) << MantissaBits;

  static float load(storage value) {
    const std::uint32_t sign = (value & sign_bit) << (32 - width);
    const std::uint32_t magnitude = value & (sign_bit - 1u);
    const std::uint32_t normal = (magnitude << shift) + rebias;
    // 1.m * 2^e - 1.0 * 2^e, where e is the exponent of the smallest normal number. This is exact.
    const std::uint32_t subnormal =
        bits_of(float_from_bits(smallest_normal | (magnitude << shift)) - float_from_bits(smallest_normal));
    std::uint32_t bits = magnitude < (1u << MantissaBits) ? subnormal : normal;
    if (HasInfinity) bits = magnitude >= infinity ? ((magnitude << shift) | 0x7f800000u) : bits;
    bits = magnitude >= NanFrom ? 0x7fc00000u : bits;
    return float_from_bits(bits | sign);
  }

  static storage store(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> (32 - width)) & sign_bit;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t rounding_bit = (magnitude >> shift) & 1u;
    const std::uint32_t normal = (magnitude - rebias + ((1u << (shift - 1)) - 1u) + rounding_bit) >> shift;
    // The least significant bit of this term is the smallest subnormal, so the addition rounds to nearest,
    // ties to even.
    constexpr std::uint32_t rounding_term = static_cast<std::uint32_t>(127 + 1 - bias - MantissaBits + 23)
                                            << 23;
    const std::uint32_t subnormal =
        bits_of(float_from_bits(magnitude) + float_from_bits(rounding_term)) - rounding_term;
    std::uint32_t small = magnitude < smallest_normal ? subnormal : normal;
    small = small > MaxBits ? MaxBits : small;
    small = magnitude > 0x7f800000u ? NanBits : small;
    return static_cast<storage>(small | sign);
  }
};

template <isthmus_datatype Datatype>
struct datatype_format;
template <>
struct datatype_format<ISTHMUS_INT8> : std::type_identity<native_format<std::int8_t>> {};
template <>
struct datatype_format<ISTHMUS_INT16> : std::type_identity<native_format<std::int16_t>> {};
template <>
struct datatype_format<ISTHMUS_INT32> : std::type_identity<native_format<std::int32_t>> {};
template <>
struct datatype_format<ISTHMUS_INT64> : std::type_identity<native_format<std::int64_t>> {};
template <>
struct datatype_format<ISTHMUS_UINT8> : std::type_identity<native_format<std::uint8_t>> {};
template <>
struct datatype_format<ISTHMUS_UINT16> : std::type_identity<native_format<std::uint16_t>> {};
template <>
struct datatype_format<ISTHMUS_UINT32> : std::type_identity<native_format<std::uint32_t>> {};
template <>
struct datatype_format<ISTHMUS_UINT64> : std::type_identity<native_format<std::uint64_t>> {};
template <>
struct datatype_format<ISTHMUS_FLOAT16>
    : std::type_identity<small_format<std::uint16_t, 5, 10, 0x7c00, 0x7c01, 0x7e00, true>> {};
template <>
struct datatype_format<ISTHMUS_BFLOAT16> : std::type_identity<bfloat16_format> {};
template <>
struct datatype_format<ISTHMUS_FLOAT32> : std::type_identity<native_format<float>> {};
template <>
struct datatype_format<ISTHMUS_FLOAT64> : std::type_identity<native_format<double>> {};
template <>
struct datatype_format<ISTHMUS_FLOAT8_E4M3>
    : std::type_identity<small_format<std::uint8_t, 4, 3, 0x7e, 0x7f, 0x7f, false>> {};
template <>
struct datatype_format<ISTHMUS_FLOAT8_E5M2>
    : std::type_identity<small_format<std::uint8_t, 5, 2, 0x7b, 0x7d, 0x7e, true>> {};

}  // namespace
}  // namespace isthmus::formats
