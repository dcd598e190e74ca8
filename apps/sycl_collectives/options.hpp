// The command line of the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sycl_collectives {

struct program_options {
  std::vector<std::uint64_t> sizes;      // bytes, ascending
  std::vector<std::string> collectives;  // empty: all
  std::string out;                       // results.json; "": not written
  std::string config;                    // Isthmus' configuration; "": the usual places
  bool progress_json = false;            // JSON lines instead of a table
  double budget_s = 0.04;                // measured time per collective and size, if that allows enough samples
  int min_samples = 5;                   // below 8 MiB; 3 from 8 MiB
  int max_samples = 400;
  double longest_call_s = 0.5;  // a slower plain MPI path is skipped at larger sizes
  double timeout_s = 60;
  bool thread_multiple = false;  // for `mpi` on device buffers, which calls MPI from its own thread
  bool host_task = false;        // run calls on CPU devices in host tasks
  std::string command;
};

// Parses the command line. Exits for --help and, with a message, for an invalid option.
program_options parse(int argc, char** argv);

}  // namespace sycl_collectives
