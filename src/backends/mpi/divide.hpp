// The division that makes an average of a sum.
#pragma once

#include <isthmus/types.h>

#include <cstdint>

namespace isthmus::mpi {

// data[i] = data[i] / n as THE TABLE defines avg: floating types in their accumulation type and rounded
// once, integers toward zero. The same on every rank, so equal sums stay bit-equal.
void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int n);

}  // namespace isthmus::mpi
