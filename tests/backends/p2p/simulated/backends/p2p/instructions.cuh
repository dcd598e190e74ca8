// Replaces src/backends/p2p/instructions.cuh. Kernels poll through load_remote, so a fiber yields there.
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

inline void wait_for_earlier_kernels() {}
inline void start_later_kernels() {}
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
