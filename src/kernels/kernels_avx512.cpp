#include "kernels/kernels.inc.hpp"

#ifndef __AVX512F__
#error "this file is to be compiled for x86-64-v4: the options that CMakeLists.txt sets for it did not arrive"
#endif

namespace isthmus::cpu {

extern const kernel_table avx512_kernels;
constinit const kernel_table avx512_kernels = make_kernel_table("avx512");

}  // namespace isthmus::cpu
