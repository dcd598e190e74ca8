// Replaces src/backends/p2p/device.hpp: runs kernels on simulated devices on the CPU. Every thread of a block
// is a fiber of the calling thread, and simulation.hpp schedules them. Kernels poll through load_remote, so a
// fiber yields there.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
inline void wait_for_earlier_kernels() {}
inline void start_later_kernels() {}
template <typename Kernel>
gpu_error gpu_load_kernel(Kernel*) {
  return gpu_success;
}

uint4 load_remote(const uint4* from);
void store_remote(uint4* to, uint4 value);
std::uint32_t load_flag(const std::uint32_t* from);
void store_flag(std::uint32_t* to, std::uint32_t value);
void store_word(std::uint32_t* to, std::uint32_t value);
std::uint64_t now_ns();
// The compiler flags of the tests exclude fused multiply-adds.
inline float multiply(float a, float b) { return a * b; }
float shuffle(float value, int mask);
constexpr int block_words = 128;
float* block_memory();

// Matrix products.
template <typename Kernel>
gpu_error gpu_allow_memory(Kernel*, unsigned) {
  return gpu_success;
}
uint4* dynamic_memory();
void copy_async(uint4* to, const void* from, std::uint32_t bytes);
void end_copies();
void wait_for_copies(int groups);
template <int N>
void wait_for_copies() {
  wait_for_copies(N);
}
void synchronize_warp();
// The vectors of the threads of a warp.
struct warp_tiles {
  uint4 upper[32], lower[32], columns[32];
};
const warp_tiles& exchange_tiles(uint4 upper, uint4 lower, uint4 columns);
template <typename T>
void multiply_tiles(float (&sums)[4], uint4 upper, uint4 lower, uint4 columns) {
  const warp_tiles& all = exchange_tiles(upper, lower, columns);
  const unsigned row = threadIdx.x % 32 / 4, first_column = threadIdx.x % 4 * 2;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned member = 0; member < 4; ++member) {
      T left[8], right[8];
      std::memcpy(left, &(i < 2 ? all.upper : all.lower)[row * 4 + member], sizeof left);
      std::memcpy(right, &all.columns[(first_column + i % 2) * 4 + member], sizeof right);
      for (int k = 0; k < 8; ++k) sums[i] += to_float(left[k]) * to_float(right[k]);
    }
  synchronize_warp();  // before the next exchange
}

}  // namespace isthmus::p2p
