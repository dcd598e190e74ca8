// Values of the elements of each datatype, computed from their definition in wide arithmetic. Shares no
// code with src/: the oracle decodes and rounds through long double and does not use the bit operations
// of the library.
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
  bool has_infinity;  // false: the largest exponent holds ordinary numbers (OCP's e4m3 "FN")
  bool saturates;     // a result above the largest finite value becomes that value
  bool rounded_once;  // reduced in float32 and rounded once (see the collective table)
};

std::size_t bytes_of(isthmus_datatype datatype);
datatype_kind kind_of(isthmus_datatype datatype);
// The format of a floating-point datatype. Aborts for other datatypes.
const float_format& format_of(isthmus_datatype datatype);

// The value of one element, including NaN and infinity. Floating-point types only.
long double decode(isthmus_datatype datatype, const std::byte* element);
// The value of one integer element, reduced modulo 2^64 (sign-extended for signed types).
std::uint64_t decode_integer(isthmus_datatype datatype, const std::byte* element);

// Stores the low bits as an element of the type.
void store_bits(isthmus_datatype datatype, std::uint64_t bits, std::byte* element);

// Rounds `value` to the nearest number of the format, ties to even. Values out of range become infinity, or the
// largest finite value if the format saturates.
long double round_to(const float_format& format, long double value);
long double largest_finite(const float_format& format);
// The exponent e for which largest_finite is in [2^e, 2^(e + 1)).
int largest_exponent(const float_format& format);
// Unit roundoff: half the distance from 1 to the next number.
long double unit_roundoff(const float_format& format);
// Half the distance between subnormals: the largest absolute error of a result that underflows.
long double underflow_error(const float_format& format);

}  // namespace oracle
