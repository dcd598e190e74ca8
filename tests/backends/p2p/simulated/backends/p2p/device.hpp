// Replaces src/backends/p2p/device.hpp: runs kernels on simulated devices on the CPU. Every thread of a block
// is a fiber of the calling thread, and simulation.hpp schedules them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#define ISTHMUS_P2P_HIP 0
#define ISTHMUS_P2P_KERNEL_ARGUMENT
#define __HIPCC_RTC__  // formats.cuh: convert with the compiler's own types
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __noinline__

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y;
  explicit dim3(int x_count, int y_count = 1)
      : x(static_cast<unsigned>(x_count)), y(static_cast<unsigned>(y_count)) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct simulated_index {
  unsigned x, y;
};
extern simulated_index threadIdx, blockIdx, blockDim, gridDim;
int __syncthreads_or(int predicate);
inline void __syncthreads() { __syncthreads_or(0); }
void __threadfence_system();

namespace isthmus::p2p {

using gpu_stream = void*;
enum gpu_error { gpu_success, gpu_invalid_value };
gpu_error launch_simulated(std::function<void()> kernel, dim3 blocks, dim3 threads, gpu_stream stream);
template <typename Arguments>
gpu_error gpu_launch_kernel(void (*kernel)(Arguments), dim3 blocks, dim3 threads, const Arguments& arguments,
                            gpu_stream stream, bool /*can_start_early*/, unsigned /*memory_bytes*/) {
  return launch_simulated([kernel, arguments] { kernel(arguments); }, blocks, threads, stream);
}
template <typename Kernel>
bool gpu_supports_early_start(Kernel*) {
  return false;
}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel*) {
  return gpu_success;
}

template <typename Kernel>
gpu_error gpu_allow_memory(Kernel*, unsigned) {
  return gpu_success;
}

}  // namespace isthmus::p2p
