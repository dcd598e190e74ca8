// The ranks of a test: threads of this process, forked processes with one or more threads, or processes started
// by scripts/each_rank (rank_arguments.hpp).
#pragma once

#include <isthmus/isthmus.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "topology/threads.hpp"

namespace topology {

// Zero-filled memory shared with processes forked later. Pages are allocated on first use.
std::byte* map_shared(std::size_t bytes);

// Barrier and data exchange between ranks without Isthmus. Ranks can be threads or forked processes.
class rendezvous {
 public:
  // Creates a rendezvous for `size` ranks. Never destroyed.
  static rendezvous& create(int size);

  // Blocks until all ranks have called it.
  void wait();
  // Collective: returns a new unique id in each call. Throws std::runtime_error on all ranks if rank 0 cannot
  // create one.
  isthmus_unique_id new_unique_id(int rank);
  // Collective: returns the values of all ranks, by rank.
  std::vector<std::vector<std::uint64_t>> exchange(int rank, const std::vector<std::uint64_t>& values);

 private:
  static constexpr int max_ranks = 16;
  static constexpr std::size_t max_values = 1u << 20;

  explicit rendezvous(int size);

  int m_size;
  pthread_barrier_t m_barrier;
  isthmus_unique_id m_id{};
  std::atomic<bool> m_id_failed{false};
  char m_id_error[sizeof(isthmus_error_info::message)]{};
  std::size_t m_counts[max_ranks];
  std::uint64_t m_values[max_ranks][max_values];
};

// Processes forked from this one. Precondition: this process has not started threads.
class child_processes {
 public:
  struct exit_report {
    int process;
    int status;  // as returned by waitpid
    // The result of the body. If a signal terminated the process: 1, after printing a message.
    int failures() const;
  };

  // Runs `body` in a new process. The exit status is its result, at most 100.
  void start(int process, const std::function<int()>& body);
  // Waits for all processes. After a signal has terminated one, the others, which may be waiting for it, are
  // killed after `grace_period`.
  std::vector<exit_report> join(std::chrono::seconds grace_period = std::chrono::seconds(30));

 private:
  std::vector<std::pair<int, pid_t>> m_running;
};

// Removes the flight recordings of this process, as if it ran on another machine where recordings
// are not visible.
void remove_recordings();

// The most recent failure of the calling thread.
isthmus_error_info last_error();

}  // namespace topology
