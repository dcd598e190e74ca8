#include "kernels/kernels.inc.hpp"

#ifndef __AVX2__
#error "compile this file for x86-64-v3: the compile options set in CMakeLists.txt were not applied"
#endif

namespace isthmus::cpu {

extern const kernel_table avx2_kernels;
constinit const kernel_table avx2_kernels = make_kernel_table("avx2");

}  // namespace isthmus::cpu
