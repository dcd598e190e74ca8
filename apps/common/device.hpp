// The device of a rank that an MPI launcher started, and what the machine has left.
#pragma once

#include <cstdint>
#include <sycl/sycl.hpp>

namespace apps {

// Before the SYCL runtime starts, after MPI_Init. The CPU device of PyPI's wheel has to be named, and each
// rank's kernels get their share of the cores instead of all of them. What the user has set stays.
void prepare_environment();

// A GPU for each rank where there are any, else the CPU.
sycl::device pick_device(int rank);

// Half of the memory that is free now; rank 0's view, so that all ranks decide alike. Collective over
// MPI_COMM_WORLD.
std::uint64_t memory_limit();

}  // namespace apps
