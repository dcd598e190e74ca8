// What an element of each datatype means, from its definition and in wide arithmetic only. Shares no code
// with src/: the oracle decodes and rounds through long double, never through bit tricks of the library.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>

namespace oracle {

enum class datatype_kind { signed_integer, unsigned_integer, floating };

// A binary floating-point format: value = (-1)^s * 2^(exponent - bias) * 1.mantissa, subnormals at the bottom.
struct float_format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;  // false: the top exponent holds ordinary numbers (OCP's e4m3 "FN")
  bool saturates;     // a result beyond the largest finite value becomes that value
  bool rounded_once;  // THE TABLE: reduced in float32 and rounded once
};

std::size_t bytes_of(isthmus_datatype datatype);
datatype_kind kind_of(isthmus_datatype datatype);
// The format of a floating datatype; asserts on others.
const float_format& format_of(isthmus_datatype datatype);

// The value of one element. Floating types only; NaN and infinities included.
long double decode(isthmus_datatype datatype, const std::byte* element);
// The value of one integer element, reduced modulo 2^64 (sign-extended for signed types).
std::uint64_t decode_integer(isthmus_datatype datatype, const std::byte* element);

// The bit pattern of a floating type from its fields, and of an integer type from the low bits.
void store_bits(isthmus_datatype datatype, std::uint64_t bits, std::byte* element);

// `value` rounded to the nearest number of the format, ties to even; what lies beyond its range becomes
// infinity, or the largest finite value where the format saturates.
long double round_to(const float_format& format, long double value);
long double largest_finite(const float_format& format);
// largest_finite lies in [2^e, 2^(e + 1)).
int largest_exponent(const float_format& format);
// Unit roundoff: half the distance from 1 to the next number.
long double unit_roundoff(const float_format& format);
// Half the distance between subnormals: the largest absolute error of a result that underflows.
long double underflow_error(const float_format& format);

}  // namespace oracle
