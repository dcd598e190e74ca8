// What a run of an application tells: a table, and records of the format of docs/benchmarks.md.
#pragma once

#include <string>
#include <vector>

#include "common/application.hpp"

namespace apps {

// One transport's part in a run.
struct outcome {
  transport_kind transport{};
  std::vector<double> samples_us{};  // of a step, the slowest rank's; one for each repetition
  double communication_us = 0;       // of a step, with waits around every exchange
  double communication_share = 0;    // of such a step
  std::uint64_t wrong = 0;
  bool same_bits = true;  // as the first transport
  std::string backend{};
  std::uint64_t message_bytes = 0;
};

void report_outcomes(const program_options& options, const application_entry& entry, const sycl::device& device, int ranks,
          const std::vector<outcome>& outcomes);

}  // namespace apps
