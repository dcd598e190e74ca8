// Sums of 16- and 8-bit floating types travel as float32, so that they are rounded once, at the end.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus::hierarchical {

// The datatype in which islands and then their sums are combined.
isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op);

// `from` and `to` don't overlap.
void widen(const void* from, isthmus_datatype datatype, void* to, std::uint64_t count);
void narrow(const void* from, isthmus_datatype datatype, void* to, std::uint64_t count);

}  // namespace isthmus::hierarchical
