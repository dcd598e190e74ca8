#include "backend/host/reduce/kernels.inc.hpp"

namespace isthmus::host {

extern const kernel_table avx2_kernels;
constinit const kernel_table avx2_kernels = make_kernel_table("avx2");

}  // namespace isthmus::host
