// The tensor-parallel engine of the host platform.
#pragma once

#include <isthmus/tensor_parallel.h>

namespace isthmus::tensor_parallel {

// Sums in the calling thread, block by block. Supports every datatype.
const isthmus_tensor_parallel_engine& host_engine() noexcept;

}  // namespace isthmus::tensor_parallel
