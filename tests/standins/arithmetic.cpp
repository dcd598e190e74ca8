#include "arithmetic.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace standin {
namespace {

// A binary floating-point format that C++20 has no type for. Values are converted through float.
template <typename Bits, int ExponentBits, int MantissaBits, bool HasInfinity>
struct small_float {
  Bits bits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int top = (1 << ExponentBits) - 1;
  static constexpr Bits sign_bit = Bits{1} << (ExponentBits + MantissaBits);
  static constexpr Bits nan_bits = HasInfinity ? (Bits{top} << MantissaBits) | (Bits{1} << (MantissaBits - 1))
                                               : static_cast<Bits>(sign_bit - 1);
  static constexpr Bits largest =
      HasInfinity ? static_cast<Bits>((Bits{top} << MantissaBits) - 1) : static_cast<Bits>(sign_bit - 2);

  float value() const {
    const int exponent = (bits >> MantissaBits) & top;
    const int mantissa = bits & ((1 << MantissaBits) - 1);
    const float sign = bits & sign_bit ? -1.0F : 1.0F;
    if (HasInfinity && exponent == top) return mantissa != 0 ? NAN : sign * INFINITY;
    if (!HasInfinity && (bits & (sign_bit - 1)) == nan_bits) return NAN;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias - MantissaBits);
    return sign *
           std::ldexp(static_cast<float>(mantissa + (1 << MantissaBits)), exponent - bias - MantissaBits);
  }

  // Rounds to nearest, ties to even. 8-bit formats saturate, wider ones overflow to infinity.
  static small_float from(float value) {
    const Bits sign = std::signbit(value) ? sign_bit : Bits{0};
    if (std::isnan(value)) return {static_cast<Bits>(sign | nan_bits)};
    constexpr bool saturates = sizeof(Bits) == 1;
    const Bits overflow_bits = saturates ? largest : static_cast<Bits>(Bits{top} << MantissaBits);
    const float size = std::fabs(value);
    if (std::isinf(size)) return {static_cast<Bits>(sign | overflow_bits)};
    int exponent = 0;
    std::frexp(size, &exponent);
    const int scale = (exponent - 1 < 1 - bias ? 1 - bias : exponent - 1) - MantissaBits;
    const double rounded = std::nearbyint(std::ldexp(static_cast<double>(size), -scale));
    // Adding the biased exponent to the mantissa carries into the next binade.
    const long raw =
        static_cast<long>(rounded) + (static_cast<long>(scale + MantissaBits + bias - 1) << MantissaBits);
    if (rounded == 0) return {sign};
    return {static_cast<Bits>(raw > largest ? sign | overflow_bits : sign | static_cast<Bits>(raw))};
  }
};

using float16 = small_float<std::uint16_t, 5, 10, true>;
using bfloat16 = small_float<std::uint16_t, 8, 7, true>;
using float8_e4m3 = small_float<std::uint8_t, 4, 3, false>;
using float8_e5m2 = small_float<std::uint8_t, 5, 2, true>;

template <typename Type>
struct is_small : std::false_type {};
template <typename Bits, int Exponent, int Mantissa, bool Infinity>
struct is_small<small_float<Bits, Exponent, Mantissa, Infinity>> : std::true_type {};

// Calls `function` with a null pointer of the type that the number stands for.
template <typename Function>
void with_type(int datatype, Function&& function) {
  switch (datatype) {
    case 0: return function(static_cast<std::int8_t*>(nullptr));
    case 1: return function(static_cast<std::uint8_t*>(nullptr));
    case 2: return function(static_cast<std::int32_t*>(nullptr));
    case 3: return function(static_cast<std::uint32_t*>(nullptr));
    case 4: return function(static_cast<std::int64_t*>(nullptr));
    case 5: return function(static_cast<std::uint64_t*>(nullptr));
    case 6: return function(static_cast<float16*>(nullptr));
    case 7: return function(static_cast<float*>(nullptr));
    case 8: return function(static_cast<double*>(nullptr));
    case 9: return function(static_cast<bfloat16*>(nullptr));
    case 10: return function(static_cast<float8_e4m3*>(nullptr));
    case 11: return function(static_cast<float8_e5m2*>(nullptr));
    default: return;
  }
}

// In the native library's numbering.
constexpr const char* type_names[] = {"int8",    "uint8",    "int32",       "uint32",
                                      "int64",   "uint64",   "float16",     "float32",
                                      "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
constexpr const char* op_names[] = {"sum", "prod", "max", "min", "avg"};

int number_of(const std::string& name, const char* const* first, const char* const* last) {
  for (const char* const* candidate = first; candidate != last; ++candidate)
    if (name == *candidate) return static_cast<int>(candidate - first);
  std::abort();
}

template <typename Function>
void with_type(const std::string& datatype, Function&& function) {
  if (datatype == "int16") return function(static_cast<std::int16_t*>(nullptr));
  if (datatype == "uint16") return function(static_cast<std::uint16_t*>(nullptr));
  with_type(number_of(datatype, std::begin(type_names), std::end(type_names)), function);
}

// Integers wrap around, because they are added and multiplied as unsigned.
template <typename Value>
Value apply(Value a, Value b, int op) {
  if constexpr (std::is_integral_v<Value>) {
    if (op == 0 || op >= 4)
      return static_cast<Value>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    if (op == 1) return static_cast<Value>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    return op == 2 ? (a < b ? b : a) : (b < a ? b : a);
  } else {
    if (op == 0 || op >= 4) return a + b;
    if (op == 1) return a * b;
    if (std::isnan(a) || std::isnan(b)) return NAN;
    return op == 2 ? (a < b ? b : a) : (b < a ? b : a);
  }
}

template <typename Element>
void combine_as(const char* contributions, int ranks, std::size_t count, int op, char* result) {
  const auto load = [&](int rank, std::size_t i) {
    Element element;
    std::memcpy(&element, contributions + (static_cast<std::size_t>(rank) * count + i) * sizeof(Element),
                sizeof(Element));
    if constexpr (is_small<Element>::value)
      return element.value();
    else
      return element;
  };
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = load(0, i);
    for (int rank = 1; rank < ranks; ++rank) sum = apply(sum, load(rank, i), op);
    if (op == 4) sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(ranks));
    Element element;
    if constexpr (is_small<Element>::value)
      element = Element::from(sum);
    else
      element = sum;
    std::memcpy(result + i * sizeof(Element), &element, sizeof(Element));
  }
}

}  // namespace

std::size_t element_bytes(int datatype) {
  std::size_t bytes = 0;
  with_type(datatype, [&](auto* type) { bytes = sizeof(*type); });
  return bytes;
}

void combine(const char* contributions, int ranks, std::size_t count, int datatype, int op, char* result) {
  with_type(datatype, [&](auto* type) {
    combine_as<std::remove_pointer_t<decltype(type)>>(contributions, ranks, count, op, result);
  });
}

std::size_t element_bytes(const std::string& datatype) {
  std::size_t bytes = 0;
  with_type(datatype, [&](auto* type) { bytes = sizeof(*type); });
  return bytes;
}

void combine(const char* contributions, int ranks, std::size_t count, const std::string& datatype,
             const std::string& op, char* result) {
  const int number = number_of(op, std::begin(op_names), std::end(op_names));
  with_type(datatype, [&](auto* type) {
    combine_as<std::remove_pointer_t<decltype(type)>>(contributions, ranks, count, number, result);
  });
}

}  // namespace standin
