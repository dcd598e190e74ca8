// What must arrive, from the definition of each collective and the generator alone.
//
// Moved elements must be bit-equal to consumed(what was sent). A sum of n floats in any order differs from
// the exact sum by at most (n + 1) * 2^-23 * sum of magnitudes; beyond that it is wrong.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "device_code.hpp"
#include "shape.hpp"

namespace sycl_collectives {

// The random stream of one rank in one call.
inline std::uint32_t stream_key(std::uint32_t call, int rank) {
  return mix_bits(mix_bits(call + 0x5bd1e995u) + static_cast<std::uint32_t>(rank) + 1);
}

inline bool sum_is_right(float got, std::uint32_t call, int size, std::uint32_t index) {
  double exact = 0, magnitudes = 0;
  for (int r = 0; r < size; ++r) {
    const double x = as_float(random_float_bits(stream_key(call, r), index));
    exact += x;
    magnitudes += std::fabs(x);
  }
  const double bound = (size + 1) * 0x1p-23 * magnitudes;
  return std::fabs(static_cast<double>(got) - 0.5 * exact) <= 0.5 * bound;  // consumed() halves
}

// Elements that are wrong among those that this rank received in call `call` and then consumed.
inline std::uint64_t count_wrong(const shape& shape, std::uint32_t call, const float* result) {
  std::uint64_t wrong = 0;
  for (const segment& part : shape.expected) {
    const float* got = result + part.recv_at;
    if (part.source < 0) {
      for (std::uint64_t i = 0; i < part.length; ++i) {
        wrong += !sum_is_right(got[i], call, shape.size, static_cast<std::uint32_t>(part.source_at + i));
      }
      continue;
    }
    const std::uint32_t key = stream_key(call, part.source);
    for (std::uint64_t i = 0; i < part.length; ++i) {
      const float sent = as_float(random_float_bits(key, static_cast<std::uint32_t>(part.source_at + i)));
      wrong += got[i] != consumed(sent);
    }
  }
  return wrong;
}

}  // namespace sycl_collectives
