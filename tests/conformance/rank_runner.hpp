// Runs ranks in threads, in a group driven by one thread, in processes, or under MPI. The suite is the same for
// all of these topologies.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace conformance {

struct rank_member {
  int rank;
  isthmus_communicator communicator;
};

class rank_runner {
 public:
  virtual ~rank_runner() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;  // the first rank of this runner
  // "threads", "group", "processes", "mixed" or "mpi". Part of the line that reproduces a failure.
  virtual const char* topology() const = 0;
  // Collective. Creates one communicator per rank of this runner (several in a group).
  // Errors: throws std::runtime_error with the message of Isthmus.
  virtual std::vector<rank_member> create(const isthmus_communicator_options& options) = 0;
  // Collective, without Isthmus. Returns the values of all ranks, by rank. `mine` has one row per
  // rank of this runner.
  virtual std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& local_hashes) = 0;
};

// The function that every runner executes. Returns the number of failures.
using rank_function = std::function<int(rank_runner&)>;

// Each function starts `size` ranks, calls `run` on every runner and returns the total number of failures.
int run_in_threads(int size, const rank_function& run);
int run_in_group(int size, const rank_function& run);
// `threads` ranks per process, connected with a unique id. Must be called before any thread exists.
int run_in_processes(int size, int threads, const rank_function& run);
// Throws in the program that is built without MPI.
int run_in_mpi(const rank_function& run);

// The details of the calling thread's last failure, in one line.
std::string describe_last_error();

}  // namespace conformance
