// Reference arithmetic for all datatypes and reduction operations, derived from the definitions of the formats:
// tables of all values and a search for the nearest one. Shares no code with the kernels.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shm_test {

using element = std::vector<std::byte>;

// Returns the value of a bit pattern of a small floating-point type.
double decode(isthmus_datatype datatype, std::uint32_t bits);
// Returns the nearest bit pattern, ties to even, with the datatype's overflow rule.
std::uint32_t encode(isthmus_datatype datatype, double value);

// Reduces `contributions` (arrays of `count` elements) in order and rounds once at the end.
std::vector<std::byte> reduce_reference(const std::vector<std::vector<std::byte>>& contributions,
                                        std::size_t count, isthmus_datatype datatype, isthmus_reduction_op op);

// True if all elements have equal bits or are both NaN.
bool same_elements(const std::byte* a, const std::byte* b, std::size_t count, isthmus_datatype datatype);

std::size_t width(isthmus_datatype datatype);

}  // namespace shm_test
