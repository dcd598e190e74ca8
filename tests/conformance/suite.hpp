// The test loop: creates communicators for every engine (a backend or one of its algorithms, forced by a rule),
// runs the plan and checks the results.
#pragma once

#include <optional>
#include <string>

#include "plan.hpp"
#include "rank_runner.hpp"

namespace conformance {

struct suite_options {
  plan_options plan;
  // "": the default selection, then every engine. Otherwise one engine, or all that match a trailing "*".
  std::string engine;
  std::string except;             // a backend to skip
  std::optional<test_case> only;  // run this case instead of the plan
  double timeout_s = 60;
};

// Collective over all rank runners. Prints one line per failure, and a summary per engine on rank 0. Returns
// the number of failures.
int run_suite(rank_runner& runner, const suite_options& options);

}  // namespace conformance
