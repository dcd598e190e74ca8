// The compared implementations of one operation, and the order in which they are measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "document.hpp"

namespace bench {

// A prepared call that can be repeated.
struct method {
  std::string provider, backend, mode;  // as in the records
  std::function<void()> run;
  std::vector<double> us{};  // samples, each from the slowest rank
};

// Calls measure(i, round) for each of the `n` methods in every round. The order rotates, so that no method
// always follows the same other one. Rounds below 0 warm up.
template <typename Measure>
void interleave(std::size_t n, int warmup_rounds, int rounds, Measure&& measure) {
  for (int round = -warmup_rounds; round < rounds; ++round)
    for (std::size_t position = 0; position < n; ++position)
      measure((position + static_cast<std::size_t>(round + warmup_rounds)) % n, round);
}

// Fields that the methods of a comparison share.
struct measured_operation {
  std::string collective, dtype;
  std::uint64_t bytes;
  int ranks;
};

inline nlohmann::json record_of(const measured_operation& operation, const method& entry, bandwidth rate) {
  return record_of({operation.collective, operation.dtype, operation.bytes, operation.ranks, entry.provider,
                    entry.backend, entry.mode},
                   entry.us, rate);
}

}  // namespace bench
