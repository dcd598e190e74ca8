#include "kernels/instruction_sets.hpp"

namespace isthmus::cpu {

const kernel_table* const* usable_kernels() noexcept {
  static const std::array<const kernel_table*, 4> tables = list_usable_kernels();
  return tables.data();
}

const kernel_table& kernels() noexcept { return *usable_kernels()[0]; }

}  // namespace isthmus::cpu
