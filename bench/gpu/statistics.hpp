#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace gpu_bench {

// Of an even number of samples the upper of the two in the middle.
inline double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// What records hold as `time_us`.
inline nlohmann::json spread(const std::vector<double>& samples) {
  return {{"min", *std::min_element(samples.begin(), samples.end())},
          {"median", median(samples)},
          {"max", *std::max_element(samples.begin(), samples.end())}};
}

}  // namespace gpu_bench
