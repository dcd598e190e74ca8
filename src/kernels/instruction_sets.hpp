#pragma once

#include <array>

#include "kernels/kernels.hpp"

namespace isthmus::cpu {

// Returns the kernel tables that this processor supports, best first, NULL-terminated. Each architecture has
// its own source file.
std::array<const kernel_table*, 4> list_usable_kernels() noexcept;

}  // namespace isthmus::cpu
