#pragma once

#include <array>

#include "kernels/kernels.hpp"

namespace isthmus::cpu {

// The tables that this processor can run, best first, NULL-terminated. One source file per architecture.
std::array<const kernel_table*, 4> list_usable_kernels() noexcept;

}  // namespace isthmus::cpu
