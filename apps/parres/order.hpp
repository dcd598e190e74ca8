// The order of the square that the Parallel Research Kernels use.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/application.hpp"

namespace parres {

inline std::uint64_t order_of(const apps::program_options& options) {
  const auto [x, y, z] = options.size;
  if (x != y || z != 1)
    throw apps::bad_argument("--size: " + std::to_string(x) + "," + std::to_string(y) + "," +
                             std::to_string(z) +
                             " must be one number, the order of a square; do not use --scaling weak");
  return x;
}

}  // namespace parres
