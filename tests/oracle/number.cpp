#include "number.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

namespace oracle {
namespace {

struct description {
  std::size_t bytes;
  datatype_kind kind;
};

constexpr datatype_kind SIGNED = datatype_kind::signed_integer;
constexpr datatype_kind UNSIGNED = datatype_kind::unsigned_integer;
constexpr datatype_kind FLOATING = datatype_kind::floating;
constexpr description descriptions[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) {bytes, kind},
#include <isthmus/collectives.def>
};

constexpr float_format binary16{5, 10, 15, true, false, true};
constexpr float_format bfloat16{8, 7, 127, true, false, true};
constexpr float_format binary32{8, 23, 127, true, false, false};
constexpr float_format binary64{11, 52, 1023, true, false, false};
constexpr float_format e4m3{4, 3, 7, false, true, true};
constexpr float_format e5m2{5, 2, 15, true, true, true};

template <typename Bits>
std::uint64_t load(const std::byte* element) {
  Bits bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return bits;
}

std::uint64_t load_bits(isthmus_datatype datatype, const std::byte* element) {
  switch (bytes_of(datatype)) {
    case 1: return load<std::uint8_t>(element);
    case 2: return load<std::uint16_t>(element);
    case 4: return load<std::uint32_t>(element);
    default: return load<std::uint64_t>(element);
  }
}

// 2^exponent. Uses a table for the exponents of all formats, because ldexp would take longer than the rest
// of a check.
long double power_of_two(int exponent) {
  constexpr int max_exponent = 1200;
  static const auto table = [] {
    std::array<long double, 2 * max_exponent + 1> powers;
    for (int e = -max_exponent; e <= max_exponent; ++e) powers[e + max_exponent] = std::ldexp(1.0L, e);
    return powers;
  }();
  if (exponent < -max_exponent || exponent > max_exponent) return std::ldexp(1.0L, exponent);
  return table[exponent + max_exponent];
}

long double value_of(const float_format& format, std::uint64_t bits) {
  const std::uint64_t mantissa = bits & ((1ull << format.mantissa_bits) - 1);
  const std::uint64_t max_exponent = (1ull << format.exponent_bits) - 1;
  const std::uint64_t exponent = (bits >> format.mantissa_bits) & max_exponent;
  const long double sign = (bits >> (format.mantissa_bits + format.exponent_bits)) & 1 ? -1.0L : 1.0L;
  if (exponent == max_exponent && format.has_infinity)
    return mantissa == 0 ? sign * std::numeric_limits<long double>::infinity()
                         : std::numeric_limits<long double>::quiet_NaN();
  if (exponent == max_exponent && mantissa == (1ull << format.mantissa_bits) - 1)  // only S.1111.111 of e4m3
    return std::numeric_limits<long double>::quiet_NaN();
  const int scale = (exponent == 0 ? 1 : static_cast<int>(exponent)) - format.bias - format.mantissa_bits;
  const std::uint64_t digits = exponent == 0 ? mantissa : mantissa + (1ull << format.mantissa_bits);
  return sign * static_cast<long double>(digits) * power_of_two(scale);
}

}  // namespace

std::size_t bytes_of(isthmus_datatype datatype) { return descriptions[datatype].bytes; }
datatype_kind kind_of(isthmus_datatype datatype) { return descriptions[datatype].kind; }

const float_format& format_of(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_FLOAT16: return binary16;
    case ISTHMUS_BFLOAT16: return bfloat16;
    case ISTHMUS_FLOAT32: return binary32;
    case ISTHMUS_FLOAT64: return binary64;
    case ISTHMUS_FLOAT8_E4M3: return e4m3;
    case ISTHMUS_FLOAT8_E5M2: return e5m2;
    case ISTHMUS_INT8:
    case ISTHMUS_INT16:
    case ISTHMUS_INT32:
    case ISTHMUS_INT64:
    case ISTHMUS_UINT8:
    case ISTHMUS_UINT16:
    case ISTHMUS_UINT32:
    case ISTHMUS_UINT64:
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  std::abort();
}

namespace {

// All values of a type of one or two bytes.
std::vector<long double> table_of(isthmus_datatype datatype) {
  std::vector<long double> values(1u << (8 * bytes_of(datatype)));
  for (std::size_t bits = 0; bits < values.size(); ++bits) values[bits] = value_of(format_of(datatype), bits);
  return values;
}

}  // namespace

long double decode(isthmus_datatype datatype, const std::byte* element) {
  static const std::array<std::vector<long double>, 4> tables{
      table_of(ISTHMUS_FLOAT16), table_of(ISTHMUS_BFLOAT16), table_of(ISTHMUS_FLOAT8_E4M3),
      table_of(ISTHMUS_FLOAT8_E5M2)};
  const std::uint64_t bits = load_bits(datatype, element);
  switch (datatype) {
    case ISTHMUS_FLOAT16: return tables[0][bits];
    case ISTHMUS_BFLOAT16: return tables[1][bits];
    case ISTHMUS_FLOAT8_E4M3: return tables[2][bits];
    case ISTHMUS_FLOAT8_E5M2: return tables[3][bits];
    default: return value_of(format_of(datatype), bits);
  }
}

std::uint64_t decode_integer(isthmus_datatype datatype, const std::byte* element) {
  const std::uint64_t bits = load_bits(datatype, element);
  const unsigned width = 8 * static_cast<unsigned>(bytes_of(datatype));
  const bool negative = kind_of(datatype) == datatype_kind::signed_integer && ((bits >> (width - 1)) & 1);
  return negative && width < 64 ? bits | (~0ull << width) : bits;
}

void store_bits(isthmus_datatype datatype, std::uint64_t bits, std::byte* element) {
  std::memcpy(element, &bits, bytes_of(datatype));  // all supported platforms are little-endian
}

int largest_exponent(const float_format& format) {
  const int max_exponent = (1 << format.exponent_bits) - 1;
  // e4m3 uses the largest exponent for numbers; only the pattern with all mantissa bits set is NaN.
  return (format.has_infinity ? max_exponent - 1 : max_exponent) - format.bias;
}

long double largest_finite(const float_format& format) {
  const long double below_two = 2.0L - power_of_two((format.has_infinity ? 0 : 1) - format.mantissa_bits);
  return below_two * power_of_two(largest_exponent(format));
}

long double round_to(const float_format& format, long double value) {
  if (std::isnan(value) || value == 0) return value;
  const long double overflow_value =
      format.saturates ? largest_finite(format) : std::numeric_limits<long double>::infinity();
  if (std::isinf(value)) return std::copysign(overflow_value, value);
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  if (exponent - 1 > largest_exponent(format)) return std::copysign(overflow_value, value);
  const int min_exponent = 1 - format.bias;
  const int quantum = std::max(exponent - 1, min_exponent) - format.mantissa_bits;
  // Added to a number whose last digit is the quantum, `value` keeps no digit below it: that addition rounds to
  // nearest, ties to even, and the subtraction is exact. (nearbyint and ldexp take ten times as long.)
  const long double rounding_term = 1.5L * power_of_two(quantum + std::numeric_limits<long double>::digits - 1);
  const long double rounded = std::copysign((value + rounding_term) - rounding_term, value);
  if (exponent <= largest_exponent(format) || std::fabs(rounded) <= largest_finite(format)) return rounded;
  return std::copysign(overflow_value, value);
}

long double unit_roundoff(const float_format& format) { return power_of_two(-format.mantissa_bits - 1); }

long double underflow_error(const float_format& format) {
  return power_of_two(1 - format.bias - format.mantissa_bits - 1);
}

}  // namespace oracle
