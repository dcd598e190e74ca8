// The device of a rank that an MPI launcher started, and the available memory of the machine.
#pragma once

#include <cstdint>
#include <sycl/sycl.hpp>

namespace apps {

// Sets environment variables. Call it after MPI_Init and before the SYCL runtime starts. The CPU device of
// PyPI's wheel must be named, and each rank's kernels get a share of the cores. Variables that the user has
// set are kept.
void prepare_environment();

// Selects a GPU for each rank if there are any, otherwise the CPU.
sycl::device pick_device(int rank);

// Half of the free memory. All ranks get rank 0's value, so that they make the same decision.
// Collective over MPI_COMM_WORLD.
std::uint64_t memory_limit();

}  // namespace apps
