// Runs a plan on one seat: creates communicators for every engine (a backend, or one algorithm of it, forced
// by a rule), makes the calls and checks what came out.
#pragma once

#include <optional>
#include <string>

#include "plan.hpp"
#include "rank_runner.hpp"

namespace conformance {

struct suite_options {
  plan_options plan;
  // "": default selection and then every engine; else only this one, or with "*" behind it those that begin so
  std::string engine;
  std::string except;             // a backend that is left out
  std::optional<test_case> only;  // one case instead of the plan
  double timeout_s = 60;
};

// Collective over all seats. Prints one line for each failure and a summary for each engine (rank 0).
int run_suite(rank_runner& runner, const suite_options& options);

}  // namespace conformance
