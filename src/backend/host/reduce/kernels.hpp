// Reduction of several arrays into one, for every datatype and operation of THE TABLE.
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace isthmus::host {

// out[i] = sources[0][i] (op) ... (op) sources[n-1][i], combined in this order in the accumulation type
// and rounded once; avg divides by n. n >= 1. `out` may equal any source, other overlap is not allowed.
using reduce_function = void (*)(void* out, const void* const* sources, int n, std::size_t count);

// One instruction set's kernels.
struct kernel_table {
  const char* name;
  reduce_function reduce[ISTHMUS_DATATYPE_COUNT][ISTHMUS_REDUCTION_OP_COUNT];
};

extern const kernel_table baseline_kernels;

// The best table that this processor can run; decided once.
const kernel_table& kernels() noexcept;

// All tables that this processor can run, best first, and NULL: for tests.
const kernel_table* const* usable_kernels() noexcept;

}  // namespace isthmus::host
