// The output of a run: a table, and records in the format of docs/internals/benchmarks.md.
#pragma once

#include <string>
#include <vector>

#include "common/application.hpp"

namespace apps {

// The results of one transport.
struct outcome {
  transport_kind transport{};
  std::vector<double> samples_us{};  // per step on the slowest rank, one per repetition
  double communication_us = 0;       // per step, with waits around every exchange
  double communication_share = 0;    // share of such a step
  std::uint64_t wrong = 0;
  bool same_bits = true;  // bits equal those of the first transport
  std::string backend{};
  std::uint64_t message_bytes = 0;
};

void report_outcomes(const program_options& options, const application_entry& entry, const sycl::device& device,
                     int ranks, const std::vector<outcome>& outcomes);

}  // namespace apps
