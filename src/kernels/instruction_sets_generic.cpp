// Architectures without specialized kernels: only the baseline.
#include "kernels/instruction_sets.hpp"

namespace isthmus::cpu {

std::array<const kernel_table*, 4> list_usable_kernels() noexcept { return {&baseline_kernels}; }

}  // namespace isthmus::cpu
