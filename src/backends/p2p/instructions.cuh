// Instructions of the peer-memory kernels that CUDA C++ and HIP spell differently. Only device compilers can read this file.
#pragma once

#include <cstdint>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

// wait_for_earlier_kernels: called first by a kernel that can start early (gpu_launch_kernel).
// start_later_kernels: called by a block that waits for no other rank from then on. When all blocks have called it, a
//   kernel that can start early is launched. An earlier call, even by a kernel of one block, could hold multiprocessors
//   that a kernel on another stream needs, on which a peer waits: the next kernel can be of any size.
// load_remote, store_remote: four words that another device may be accessing. Each word is accessed at once; the four
//   are not one unit.
// load_flag, store_flag: one word, with acquire and release semantics between devices.
// store_word: one word, without an order.
// now_ns: a device-wide clock.
// multiply: a product that the compiler does not fuse with an addition.
// shuffle: the value of the thread whose index in a group of 32 threads differs in the bits of `mask`.
//
// Only for CUDA, for matrix products:
// dynamic_memory: the memory of the block whose size gpu_launch_kernel gets.
// copy_async: starts to copy 16 aligned bytes, or to clear them if `bytes` is 0. end_copies: ends a group of copies of this thread.
// wait_for_copies<N>: waits for all groups of this thread except the last N.
// multiply_tiles: called by all threads of a warp. Adds the product of a 16 x 32 tile, whose rows thread / 4 (`upper`) and
//   thread / 4 + 8 (`lower`) a thread has, and a 32 x 8 tile, whose column thread / 4 it has, 8 elements of each. The sums
//   belong to the row thread / 4 (the last two: + 8) and the columns thread % 4 * 2 and the next one.
#if ISTHMUS_P2P_HIP

__device__ inline void wait_for_earlier_kernels() {}
__device__ inline void start_later_kernels() {}

__device__ inline uint4 load_remote(const uint4* source) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(source);
  uint4 value;
  value.x = __hip_atomic_load(words + 0, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.y = __hip_atomic_load(words + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.z = __hip_atomic_load(words + 2, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  value.w = __hip_atomic_load(words + 3, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  return value;
}

__device__ inline void store_remote(uint4* destination, uint4 value) {
  auto* words = reinterpret_cast<std::uint32_t*>(destination);
  __hip_atomic_store(words + 0, value.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 1, value.y, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 2, value.z, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 3, value.w, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ inline std::uint32_t load_flag(const std::uint32_t* source) {
  return __hip_atomic_load(source, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ inline void store_flag(std::uint32_t* destination, std::uint32_t value) {
  __hip_atomic_store(destination, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ inline void store_word(std::uint32_t* destination, std::uint32_t value) {
  __hip_atomic_store(destination, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Nanoseconds, from a counter with 100 MHz. The instruction does not exist in the host compilation pass.
#if defined(__HIP_DEVICE_COMPILE__)
__device__ inline std::uint64_t now_ns() { return __builtin_amdgcn_s_memrealtime() * 10; }
#else
__device__ inline std::uint64_t now_ns() { return 0; }
#endif

__device__ inline float multiply(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
__device__ inline float shuffle(float value, int mask) { return __shfl_xor(value, mask, 32); }

#else

__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void start_later_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline uint4 load_remote(const uint4* source) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

__device__ inline void store_remote(uint4* destination, uint4 value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};"
               :
               : "l"(destination), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline std::uint32_t load_flag(const std::uint32_t* source) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}
__device__ inline void store_flag(std::uint32_t* destination, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(destination), "r"(value) : "memory");
}
__device__ inline void store_word(std::uint32_t* destination, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(destination), "r"(value) : "memory");
}

__device__ inline std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float shuffle(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

__device__ inline uint4* dynamic_memory() {
  extern __shared__ uint4 vectors[];
  return vectors;
}
// The hint lets the L2 cache fetch two copies at once: 14336 x 8192 weights took 54.4 us instead of 64.9 us (H200).
__device__ inline void copy_async(uint4* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}
__device__ inline void synchronize_warp() { __syncwarp(); }

// In an instruction, a thread has the elements 2t, 2t + 1, 2t + 8 and 2t + 9 of rows of length 16, t = thread % 4. The order
// of the elements is the same in both operands, so it does not matter which elements of the matrices these are.
template <typename T>
__device__ inline void multiply_tiles(float (&sums)[4], uint4 upper, uint4 lower, uint4 columns) {
#define ISTHMUS_P2P_MULTIPLY(type, first, second)                                                              \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                          \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                    \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                    \
               : "r"(upper.first), "r"(lower.first), "r"(upper.second), "r"(lower.second), "r"(columns.first), \
                 "r"(columns.second))
  if constexpr (T::is_bfloat16) {
    ISTHMUS_P2P_MULTIPLY("bf16", x, y);
    ISTHMUS_P2P_MULTIPLY("bf16", z, w);
  } else {
    ISTHMUS_P2P_MULTIPLY("f16", x, y);
    ISTHMUS_P2P_MULTIPLY("f16", z, w);
  }
#undef ISTHMUS_P2P_MULTIPLY
}

#endif

// Memory that the threads of a block share.
constexpr int block_words = 128;
__device__ inline float* block_memory() {
  __shared__ float words[block_words];
  return words;
}

}  // namespace isthmus::p2p
