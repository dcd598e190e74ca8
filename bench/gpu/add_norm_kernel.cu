// The kernel that follows an allreduce if nothing is fused. Does not include gpu_bench.hpp (empty_kernel.cu).
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace gpu_bench {
namespace {

constexpr int elements = 8;  // of a 16-byte vector
constexpr int most_threads = 1024;

struct alignas(16) vector8 {
  __nv_bfloat16 lanes[elements];
};

__device__ float block_sum(float value) {
  __shared__ float sums[32];
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

// One block for each row; a thread keeps at most two vectors in registers.
__global__ void __launch_bounds__(most_threads)
    add_norm(const vector8* sum, const vector8* residual, const vector8* weight, vector8* residual_out,
             vector8* normalized, int vectors, float eps) {
  const std::size_t row = std::size_t(blockIdx.x) * vectors;
  vector8 x[2];
  float squares = 0.0f;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int i = u * most_threads + threadIdx.x;
    if (i >= vectors) continue;
    const vector8 a = sum[row + i], b = residual[row + i];
#pragma unroll
    for (int k = 0; k < elements; ++k) {
      x[u].lanes[k] = __float2bfloat16_rn(__bfloat162float(a.lanes[k]) + __bfloat162float(b.lanes[k]));
      const float value = __bfloat162float(x[u].lanes[k]);
      squares += value * value;
    }
  }
  const float factor = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(vectors * elements) + eps);
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int i = u * most_threads + threadIdx.x;
    if (i >= vectors) continue;
    residual_out[row + i] = x[u];
    const vector8 w = weight[i];
    vector8 y;
#pragma unroll
    for (int k = 0; k < elements; ++k)
      y.lanes[k] = __float2bfloat16_rn(__bfloat162float(x[u].lanes[k]) * factor * __bfloat162float(w.lanes[k]));
    normalized[row + i] = y;
  }
}

}  // namespace

// Rows of bfloat16; `hidden` is a multiple of 8 and at most 16384.
void launch_add_norm(const void* sum, const void* residual, const void* weight, void* residual_out,
                     void* normalized, std::uint64_t tokens, std::uint64_t hidden, float eps, void* stream) {
  const int vectors = static_cast<int>(hidden / elements);
  const int threads = std::min(most_threads, (vectors + 31) / 32 * 32);
  add_norm<<<static_cast<unsigned>(tokens), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const vector8*>(sum), static_cast<const vector8*>(residual),
      static_cast<const vector8*>(weight), static_cast<vector8*>(residual_out),
      static_cast<vector8*>(normalized), vectors, eps);
}

}  // namespace gpu_bench
