// Division of a sum by the number of ranks, for ISTHMUS_AVG.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus::mpi {

// data[i] = data[i] / divisor, as the collective table defines avg: floating-point types in their
// accumulation type with a single rounding, integers toward zero. The operation is deterministic, so equal
// sums stay bit-identical.
void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int divisor);

}  // namespace isthmus::mpi
