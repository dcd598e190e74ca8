// Compares a result with what the definitions allow.
//
// Moves and integers must be exact. A floating min or max must equal the exact value (NaN when any
// contribution is NaN). For sums, averages and products over n ranks any order of evaluation is allowed:
//   accumulation with unit roundoff u is off by at most b = k u / (1 - k u) * S (+ underflow),
//   k = n - 1 roundings (n with avg's division), S = sum of |x_r| (of |prod x_r|),
// and the result must lie in [round(exact - b), round(exact + b)], where `round` is to nearest even in the
// element's type. u is that of float32 for the types that THE TABLE reduces in float32 and rounds once, and
// of the type itself otherwise, or where `steps_in_type` says that a backend rounds at every step.
// (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2; gamma_k of lemma 3.1.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inputs.hpp"
#include "movement.hpp"

namespace oracle {

// What one reduced element may be, before it is rounded to the element's type.
struct interval {
  long double low;
  long double high;
  bool is_nan;  // must be NaN
};

// `contributions` are the ranks' values. Floating types only.
interval allowed(isthmus_datatype datatype, isthmus_reduction_op op, std::span<const long double> contributions,
                 bool steps_in_type);

// Whether `value` of that type may stand for a result in `range`: it lies between its rounded ends.
bool contains(isthmus_datatype datatype, const interval& range, long double value);

// The reduction of integers, as THE TABLE defines it, modulo 2^64 and sign-extended.
std::uint64_t reduce_integers(isthmus_datatype datatype, isthmus_reduction_op op,
                              std::span<const std::uint64_t> contributions);

struct check_request {
  input_spec inputs;
  operation_shape shape;
  int rank;
  bool steps_in_type = false;
};

// Nothing, or one line about the first wrong element of a receive buffer that starts at `recv`.
std::optional<std::string> find_error(const check_request& request, const std::byte* recv);
// The number of wrong elements there.
std::uint64_t count_errors(const check_request& request, const std::byte* recv);

}  // namespace oracle
