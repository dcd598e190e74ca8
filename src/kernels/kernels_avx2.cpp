#include "kernels/kernels.inc.hpp"

#ifndef __AVX2__
#error "this file is to be compiled for x86-64-v3: the options that CMakeLists.txt sets for it did not arrive"
#endif

namespace isthmus::cpu {

extern const kernel_table avx2_kernels;
constinit const kernel_table avx2_kernels = make_kernel_table("avx2");

}  // namespace isthmus::cpu
