// The arithmetic of THE TABLE, written from the definitions of the formats: tables of all values and a
// search for the nearest one. Shares nothing with the kernels.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shm_test {

using element = std::vector<std::byte>;

// Value of a small floating type's bit pattern.
double decode(isthmus_datatype datatype, std::uint32_t bits);
// Nearest bit pattern, ties to even, with the datatype's rule for overflow.
std::uint32_t encode(isthmus_datatype datatype, double value);

// The reduction of `contributions` (arrays of `count` elements) in order, rounded once at the end.
std::vector<std::byte> reduce_reference(const std::vector<std::vector<std::byte>>& contributions,
                                        std::size_t count, isthmus_datatype datatype, isthmus_reduction_op op);

// Equal bits, or both NaN.
bool same_elements(const std::byte* a, const std::byte* b, std::size_t count, isthmus_datatype datatype);

std::size_t width(isthmus_datatype datatype);

}  // namespace shm_test
