// Kernel tables for x86-64 processors.
#include "kernels/instruction_sets.hpp"

namespace isthmus::cpu {

extern const kernel_table avx2_kernels;
extern const kernel_table avx512_kernels;

namespace {

bool has_avx2() {  // x86-64-v3, which kernels_avx2.cpp is compiled for
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

bool has_avx512() {  // x86-64-v4
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

std::array<const kernel_table*, 4> list_usable_kernels() noexcept {
  __builtin_cpu_init();
  std::array<const kernel_table*, 4> tables{};
  std::size_t n = 0;
  if (has_avx2() && has_avx512()) tables[n++] = &avx512_kernels;
  if (has_avx2()) tables[n++] = &avx2_kernels;
  tables[n] = &baseline_kernels;
  return tables;
}

}  // namespace isthmus::cpu
