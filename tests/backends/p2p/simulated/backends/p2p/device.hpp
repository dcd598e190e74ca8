// Replaces src/backends/p2p/device.hpp: runs kernels on simulated devices on the CPU. Every thread of a block
// is a fiber of the calling thread, and simulation.hpp schedules them. Kernels poll through load_remote, so a
// fiber yields there.
#pragma once

#include <cstddef>
#include <cstdint>

#define ISTHMUS_P2P_HIP 0
#define __HIPCC_RTC__  // formats.cuh: convert with the compiler's own types
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(threads)
#define __noinline__

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x;
  explicit dim3(int n) : x(static_cast<unsigned>(n)) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct simulated_index {
  unsigned x;
};
extern simulated_index threadIdx, blockIdx, blockDim, gridDim;
int __syncthreads_or(int predicate);

namespace isthmus::p2p {

using gpu_stream = void*;
enum gpu_error { gpu_success, gpu_invalid_value };
gpu_error gpu_launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments, gpu_stream stream,
                            bool can_start_early);
template <typename Kernel>
bool gpu_supports_early_start(Kernel*) {
  return false;
}
inline void wait_for_earlier_kernels() {}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel*) {
  return gpu_success;
}

uint4 load_remote(const uint4* from);
void store_remote(uint4* to, uint4 value);
std::uint64_t now_ns();

}  // namespace isthmus::p2p
