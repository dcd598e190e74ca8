// Element-wise operations on host buffers of any datatype.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus {

// data[i] = data[i] / divisor, as the collective table defines avg: floating-point types in their accumulation type with
// a single rounding, integers toward zero. The operation is deterministic, so equal sums stay bit-identical.
void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int divisor);

// Returns the datatype of partial sums: float32 for 8- and 16-bit floating-point types, so that the result is rounded
// only once.
isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op);

// Convert to and from float32. `source` and `destination` must not overlap.
void widen(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count);
void narrow(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count);

}  // namespace isthmus
