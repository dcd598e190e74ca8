#pragma once

#include <algorithm>
#include <vector>

#include "check.hpp"
#include "oracle/inputs.hpp"

namespace gpu_bench {

// Fills a buffer of the current device with a repeated pattern of 16 MiB of random numbers, which no cache or
// link can exploit.
inline void fill_repeated(void* destination, std::uint64_t bytes, int rank,
                          isthmus_datatype datatype = ISTHMUS_FLOAT32) {
  std::vector<std::byte> inputs(std::min<std::uint64_t>(bytes, 16 << 20));
  oracle::fill({datatype, ISTHMUS_SUM, oracle::input_class::ordinary, 3}, rank, 0, inputs);
  for (std::uint64_t offset = 0; offset < bytes; offset += inputs.size())
    check(cudaMemcpy(static_cast<std::byte*>(destination) + offset, inputs.data(),
                     std::min<std::uint64_t>(inputs.size(), bytes - offset), cudaMemcpyDefault));
}

}  // namespace gpu_bench
