// The job's command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sycl_collectives {

struct program_options {
  std::vector<std::uint64_t> sizes;      // bytes, rising
  std::vector<std::string> collectives;  // empty: all
  std::string out;                       // results.json; "": not written
  std::string config;                    // Isthmus' configuration; "": the usual places
  bool progress_json = false;            // JSON lines instead of a table
  double budget_s = 0.04;                // measured time per collective and size, if enough samples fit
  int min_samples = 5;                   // below 8 MiB; 3 from there on
  int max_samples = 400;
  double longest_call_s = 0.5;  // a plain MPI path that takes longer is left out at larger sizes
  double timeout_s = 60;
  bool thread_multiple = false;  // of MPI; the backend `hybrid` calls it from a thread of its own
  bool host_task = false;        // how calls run on CPU devices
  std::string command;
};

// Exits for --help and after a message about a wrong option.
program_options parse(int argc, char** argv);

}  // namespace sycl_collectives
