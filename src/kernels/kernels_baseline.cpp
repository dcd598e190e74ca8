#include "kernels/kernels.inc.hpp"

namespace isthmus::cpu {

extern const kernel_table baseline_kernels;
constinit const kernel_table baseline_kernels = make_kernel_table("baseline");

}  // namespace isthmus::cpu
