#include "backend/host/reduce/kernels.inc.hpp"

namespace isthmus::host {

extern const kernel_table avx512_kernels;
constinit const kernel_table avx512_kernels = make_kernel_table("avx512");

}  // namespace isthmus::host
