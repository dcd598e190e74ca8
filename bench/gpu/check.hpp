// Error checks of measurements: the first failure ends the program, because no number after it is meaningful.
#pragma once

#include <cuda_runtime_api.h>

#include <isthmus/error.hpp>
#include <stdexcept>

namespace gpu_bench {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
using isthmus::detail::check;

}  // namespace gpu_bench
