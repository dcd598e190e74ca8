#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>

namespace shm_test {
namespace {

struct format {
  int exponent_bits, mantissa_bits;
  bool has_infinity, saturates;
};

const format& format_of(isthmus_datatype datatype) {
  static const std::map<isthmus_datatype, format> formats = {
      {ISTHMUS_FLOAT16, {5, 10, true, false}},
      {ISTHMUS_BFLOAT16, {8, 7, true, false}},
      {ISTHMUS_FLOAT8_E4M3, {4, 3, false, true}},
      {ISTHMUS_FLOAT8_E5M2, {5, 2, true, true}},
  };
  return formats.at(datatype);
}

std::vector<double> list_magnitudes(isthmus_datatype datatype) {
  std::vector<double> table;
  for (std::uint32_t bits = 0; std::isfinite(decode(datatype, bits)); ++bits)
    table.push_back(decode(datatype, bits));
  return table;
}

// All finite magnitudes in ascending order. The index of a magnitude is its bit pattern.
const std::vector<double>& magnitudes(isthmus_datatype datatype) {
  static const std::map<isthmus_datatype, std::vector<double>> tables = {
      {ISTHMUS_FLOAT16, list_magnitudes(ISTHMUS_FLOAT16)},
      {ISTHMUS_BFLOAT16, list_magnitudes(ISTHMUS_BFLOAT16)},
      {ISTHMUS_FLOAT8_E4M3, list_magnitudes(ISTHMUS_FLOAT8_E4M3)},
      {ISTHMUS_FLOAT8_E5M2, list_magnitudes(ISTHMUS_FLOAT8_E5M2)},
  };
  return tables.at(datatype);
}

template <typename Type>
Type get(const std::vector<std::byte>& bytes, std::size_t index) {
  Type value;
  std::memcpy(&value, bytes.data() + index * sizeof(Type), sizeof(Type));
  return value;
}

template <typename Type>
Type combine_floating(Type a, Type b, isthmus_reduction_op op) {
  const bool is_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case ISTHMUS_SUM:
    case ISTHMUS_AVG: return a + b;
    case ISTHMUS_PROD: return a * b;
    case ISTHMUS_MIN: return is_nan ? std::numeric_limits<Type>::quiet_NaN() : std::min(a, b);
    case ISTHMUS_MAX: return is_nan ? std::numeric_limits<Type>::quiet_NaN() : std::max(a, b);
    default: throw std::invalid_argument("op");
  }
}

template <typename Type>
Type combine_integer(Type a, Type b, isthmus_reduction_op op) {
  const auto x = static_cast<unsigned __int128>(static_cast<__int128>(a));
  const auto y = static_cast<unsigned __int128>(static_cast<__int128>(b));
  switch (op) {
    case ISTHMUS_SUM:
    case ISTHMUS_AVG: return static_cast<Type>(x + y);
    case ISTHMUS_PROD: return static_cast<Type>(x * y);
    case ISTHMUS_MIN: return std::min(a, b);
    case ISTHMUS_MAX: return std::max(a, b);
    default: throw std::invalid_argument("op");
  }
}

using arrays = std::vector<std::vector<std::byte>>;

template <typename Type>
void reduce_integers(const arrays& in, std::size_t count, isthmus_reduction_op op,
                     std::vector<std::byte>& out) {
  for (std::size_t i = 0; i < count; ++i) {
    Type value = get<Type>(in[0], i);
    for (std::size_t r = 1; r < in.size(); ++r) value = combine_integer(value, get<Type>(in[r], i), op);
    if (op == ISTHMUS_AVG)
      value = static_cast<Type>(static_cast<__int128>(value) / static_cast<__int128>(in.size()));
    std::memcpy(out.data() + i * sizeof(Type), &value, sizeof(Type));
  }
}

template <typename Type>
void reduce_floats(const arrays& in, std::size_t count, isthmus_reduction_op op, std::vector<std::byte>& out) {
  for (std::size_t i = 0; i < count; ++i) {
    Type value = get<Type>(in[0], i);
    for (std::size_t r = 1; r < in.size(); ++r) value = combine_floating(value, get<Type>(in[r], i), op);
    if (op == ISTHMUS_AVG) value /= static_cast<Type>(in.size());
    std::memcpy(out.data() + i * sizeof(Type), &value, sizeof(Type));
  }
}

template <typename Bits>
void reduce_small(const arrays& in, std::size_t count, isthmus_datatype datatype, isthmus_reduction_op op,
                  std::vector<std::byte>& out) {
  for (std::size_t i = 0; i < count; ++i) {
    auto value = static_cast<float>(decode(datatype, get<Bits>(in[0], i)));
    for (std::size_t r = 1; r < in.size(); ++r)
      value = combine_floating(value, static_cast<float>(decode(datatype, get<Bits>(in[r], i))), op);
    if (op == ISTHMUS_AVG) value /= static_cast<float>(in.size());
    const auto bits = static_cast<Bits>(encode(datatype, value));
    std::memcpy(out.data() + i * sizeof(Bits), &bits, sizeof(Bits));
  }
}

template <typename Bits>
bool same_small(const std::byte* a, const std::byte* b, isthmus_datatype datatype) {
  Bits x, y;
  std::memcpy(&x, a, sizeof(x));
  std::memcpy(&y, b, sizeof(y));
  return x == y || (std::isnan(decode(datatype, x)) && std::isnan(decode(datatype, y)));
}

template <typename Type>
bool same_native(const std::byte* a, const std::byte* b) {
  Type x, y;
  std::memcpy(&x, a, sizeof(x));
  std::memcpy(&y, b, sizeof(y));
  return std::memcmp(&x, &y, sizeof(x)) == 0 || (std::isnan(x) && std::isnan(y));
}

}  // namespace

double decode(isthmus_datatype datatype, std::uint32_t bits) {
  const format& f = format_of(datatype);
  const std::uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const std::uint32_t exponent = (bits >> f.mantissa_bits) & ((1u << f.exponent_bits) - 1);
  const double sign = (bits >> (f.mantissa_bits + f.exponent_bits)) & 1 ? -1 : 1;
  const std::uint32_t top = (1u << f.exponent_bits) - 1;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (f.has_infinity && exponent == top)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : nan;
  if (!f.has_infinity && exponent == top && mantissa == (1u << f.mantissa_bits) - 1) return nan;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return sign *
         std::ldexp(mantissa + (1u << f.mantissa_bits), static_cast<int>(exponent) - bias - f.mantissa_bits);
}

std::uint32_t encode(isthmus_datatype datatype, double value) {
  const format& f = format_of(datatype);
  const auto& table = magnitudes(datatype);
  const std::uint32_t sign = std::signbit(value) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  const auto infinity = static_cast<std::uint32_t>(table.size());
  if (std::isnan(value)) return sign | (f.has_infinity ? infinity + 1 : infinity);
  const double magnitude = std::fabs(value);
  // for rounding, infinity counts as the next finite value
  const double past_end = table.back() + (table.back() - table[table.size() - 2]);
  const auto upper =
      static_cast<std::uint32_t>(std::lower_bound(table.begin(), table.end(), magnitude) - table.begin());
  std::uint32_t nearest = upper;
  if (upper > 0) {
    const double low = table[upper - 1], high = upper < table.size() ? table[upper] : past_end;
    const double to_low = magnitude - low, to_high = high - magnitude;
    if (to_low < to_high || (to_low == to_high && (upper - 1) % 2 == 0)) nearest = upper - 1;
  }
  if (nearest >= infinity && f.saturates) nearest = infinity - 1;
  return sign | nearest;
}

std::vector<std::byte> reduce_reference(const arrays& in, std::size_t count, isthmus_datatype datatype,
                                        isthmus_reduction_op op) {
  std::vector<std::byte> out(count * width(datatype));
  switch (datatype) {
    case ISTHMUS_INT8: reduce_integers<std::int8_t>(in, count, op, out); break;
    case ISTHMUS_INT16: reduce_integers<std::int16_t>(in, count, op, out); break;
    case ISTHMUS_INT32: reduce_integers<std::int32_t>(in, count, op, out); break;
    case ISTHMUS_INT64: reduce_integers<std::int64_t>(in, count, op, out); break;
    case ISTHMUS_UINT8: reduce_integers<std::uint8_t>(in, count, op, out); break;
    case ISTHMUS_UINT16: reduce_integers<std::uint16_t>(in, count, op, out); break;
    case ISTHMUS_UINT32: reduce_integers<std::uint32_t>(in, count, op, out); break;
    case ISTHMUS_UINT64: reduce_integers<std::uint64_t>(in, count, op, out); break;
    case ISTHMUS_FLOAT32: reduce_floats<float>(in, count, op, out); break;
    case ISTHMUS_FLOAT64: reduce_floats<double>(in, count, op, out); break;
    case ISTHMUS_FLOAT16:
    case ISTHMUS_BFLOAT16: reduce_small<std::uint16_t>(in, count, datatype, op, out); break;
    case ISTHMUS_FLOAT8_E4M3:
    case ISTHMUS_FLOAT8_E5M2: reduce_small<std::uint8_t>(in, count, datatype, op, out); break;
    default: throw std::invalid_argument("datatype");
  }
  return out;
}

bool same_elements(const std::byte* a, const std::byte* b, std::size_t count, isthmus_datatype datatype) {
  const std::size_t bytes = width(datatype);
  if (count == 0 || std::memcmp(a, b, count * bytes) == 0) return true;
  for (std::size_t i = 0; i < count; ++i, a += bytes, b += bytes) {
    bool same = std::memcmp(a, b, bytes) == 0;
    if (datatype == ISTHMUS_FLOAT32) same = same_native<float>(a, b);
    if (datatype == ISTHMUS_FLOAT64) same = same_native<double>(a, b);
    if (datatype == ISTHMUS_FLOAT16 || datatype == ISTHMUS_BFLOAT16)
      same = same_small<std::uint16_t>(a, b, datatype);
    if (datatype == ISTHMUS_FLOAT8_E4M3 || datatype == ISTHMUS_FLOAT8_E5M2)
      same = same_small<std::uint8_t>(a, b, datatype);
    if (!same) return false;
  }
  return true;
}

std::size_t width(isthmus_datatype datatype) {
  static constexpr std::size_t widths[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1};
  return widths[datatype];
}

}  // namespace shm_test
