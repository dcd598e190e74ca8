// Shards of a tensor for tests. Elements are whole numbers whose sums are exact in every type, so that results
// need no tolerance. Inactive shards hold NaN.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "oracle/inputs.hpp"

namespace shards {

// Element i of a rank's shard: a whole number in [-7, 7]. Sums of 16 such numbers are exact in
// bfloat16 as well.
inline float value(std::uint64_t seed, int rank, std::uint64_t i) {
  return static_cast<float>(oracle::mix(seed, static_cast<std::uint64_t>(rank), i) % 15) - 7.0f;
}

inline std::vector<float> make(std::uint64_t seed, int rank, std::uint64_t count, bool active) {
  std::vector<float> shard(count, std::nanf(""));
  if (active)
    for (std::uint64_t i = 0; i < count; ++i) shard[i] = value(seed, rank, i);
  return shard;
}

inline float expected(std::uint64_t seed, int ranks, std::uint64_t active, std::uint64_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank)
    if ((active >> rank & 1u) != 0) sum += value(seed, rank, i);
  return sum;
}

inline std::uint64_t count_wrong(const std::vector<float>& result, std::uint64_t seed, int ranks,
                                 std::uint64_t active) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < result.size(); ++i) wrong += !(result[i] == expected(seed, ranks, active, i));
  return wrong;
}

}  // namespace shards
