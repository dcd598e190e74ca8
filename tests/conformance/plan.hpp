// Selection of test cases: the product of the collective table with small counts, a seeded sample with large
// counts, and batches of calls without pauses.
#pragma once

#include <cstdint>
#include <vector>

#include "test_case.hpp"

namespace conformance {

struct plan_options {
  std::uint64_t seed = 1;
  int samples = 150;                       // number of large cases
  int batches = 6;                         // number of batches of each kind
  int sampling_stride = 1;                 // one of `sampling_stride` cases of the product is run
  bool is_covering = false;                // run one form and count of the product per type and operation
  std::uint64_t largest_bytes = 1u << 20;  // upper limit of one block
};

struct plan {
  std::vector<test_case> singles;
  // Issued back to back with deliberate skew between ranks; checked at the end.
  std::vector<std::vector<test_case>> back_to_back;
  // Issued inside one group.
  std::vector<std::vector<test_case>> grouped;
};

// `boundaries`: byte counts at which rules change. The plan is equal on all ranks.
plan make_plan(const plan_options& options, int size, const std::vector<std::uint64_t>& boundaries);

}  // namespace conformance
