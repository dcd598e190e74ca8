// Conversion for reductions of 8- and 16-bit floating-point types. Partial sums are float32, so that the result
// is rounded only once.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus::hierarchical {

// The datatype of the partial sums.
isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op);

// `source` and `destination` must not overlap.
void widen(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count);
void narrow(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count);

}  // namespace isthmus::hierarchical
