// Which cases are run: the product of THE TABLE on small counts, a seeded sample of it on large ones, and
// batches of calls without a pause between them.
#pragma once

#include <cstdint>
#include <vector>

#include "test_case.hpp"

namespace conformance {

struct plan_options {
  std::uint64_t seed = 1;
  int samples = 150;                       // large cases
  int batches = 6;                         // of each kind
  int thinning = 1;                        // every how manyth case of the product
  bool covering = false;                   // of the product one form and count for each type and operation
  std::uint64_t largest_bytes = 1u << 20;  // of one block
};

struct plan {
  std::vector<test_case> singles;
  // Issued back to back with ranks that are skewed on purpose; checked at the end.
  std::vector<std::vector<test_case>> back_to_back;
  // Issued inside one group.
  std::vector<std::vector<test_case>> grouped;
};

// `boundaries`: byte sizes at which rules change. The same plan on all ranks.
plan make_plan(const plan_options& options, int size, const std::vector<std::uint64_t>& boundaries);

}  // namespace conformance
