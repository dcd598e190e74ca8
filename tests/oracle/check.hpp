// Checks results against the definitions of the collectives.
//
// Moved data and integers must be exact. A floating-point min or max must equal the exact value (NaN if any
// contribution is NaN). Sums, averages and products over n ranks can be evaluated in any order:
//   Accumulation with unit roundoff u has an error of at most b = k u / (1 - k u) * S (+ underflow),
//   with k = n - 1 roundings (n for the division of avg) and S = sum of |x_r| (of |prod x_r|).
// The result must be in [round(exact - b), round(exact + b)], where `round` rounds to nearest even in the
// element type. u is the unit roundoff of float32 for types that the collective table reduces in float32 and
// rounds once. Otherwise, or if `steps_in_type` is set because the backend rounds at every step, it is that of
// the type itself.
//
// Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2 and lemma 3.1 (gamma_k).
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

// Allowed range of a reduced element before it is rounded to the element type.
struct interval {
  long double low;
  long double high;
  bool is_nan;  // the element must be NaN
};

// `contributions` are the values of the ranks. Floating-point types only.
interval allowed(isthmus_datatype datatype, isthmus_reduction_op op, std::span<const long double> contributions,
                 bool steps_in_type);

// True if `value` is between the ends of `range` after they have been rounded to the type.
bool contains(isthmus_datatype datatype, const interval& range, long double value);

// Reduction of integers as the collective table defines it, modulo 2^64 and sign-extended.
std::uint64_t reduce_integers(isthmus_datatype datatype, isthmus_reduction_op op,
                              std::span<const std::uint64_t> contributions);

struct check_request {
  input_spec inputs;
  operation_shape shape;
  int rank;
  bool steps_in_type = false;
};

// Describes the first wrong element of the receive buffer at `recv` in one line; nullopt if all
// elements are correct.
std::optional<std::string> find_error(const check_request& request, const std::byte* recv);
// The number of wrong elements in the receive buffer at `recv`.
std::uint64_t count_errors(const check_request& request, const std::byte* recv);

}  // namespace oracle
