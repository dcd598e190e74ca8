// Where a rank sits: in a thread, in a group that one thread drives, in a process, or under MPI. The suite
// runs the same on all of them.
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
  virtual int rank() const = 0;  // the first of those that sit here
  // "threads", "group", "processes", "mixed", "mpi"; part of the line that reproduces a failure.
  virtual const char* topology() const = 0;
  // Collective. One communicator for each rank of this seat (several in a group). Throws std::runtime_error
  // with Isthmus' own message.
  virtual std::vector<rank_member> create(const isthmus_communicator_options& options) = 0;
  // Collective, outside Isthmus: everybody's values, by rank. A seat gives one row for each of its ranks.
  virtual std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& mine) = 0;
};

// What every seat runs; the number of failures is returned.
using rank_function = std::function<int(rank_runner&)>;

// Each starts `size` ranks, runs `play` on every seat and returns the sum of the failures.
int run_in_threads(int size, const rank_function& run);
int run_in_group(int size, const rank_function& run);
// `threads` ranks in each process; they meet through a unique_id. Call it before any thread exists.
int run_in_processes(int size, int threads, const rank_function& run);
// Defined in the program that is built with MPI.
int run_in_mpi(const rank_function& run);

// The details of the calling thread's latest failure in one line.
std::string describe_last_error();

}  // namespace conformance
