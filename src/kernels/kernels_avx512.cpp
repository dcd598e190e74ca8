#include "kernels/kernels.inc.hpp"

#ifndef __AVX512F__
#error "compile this file for x86-64-v4: the compile options set in CMakeLists.txt were not applied"
#endif

namespace isthmus::cpu {

extern const kernel_table avx512_kernels;
constinit const kernel_table avx512_kernels = make_kernel_table("avx512");

}  // namespace isthmus::cpu
