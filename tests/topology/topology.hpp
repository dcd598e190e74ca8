// The ranks of a test: threads of this process, processes of several threads, or one of the processes that
// scripts/each_rank started (rank_arguments.hpp). What each suite makes of a rank is its own.
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

// Zeros that the processes forked from here share. Pages appear when they are used.
std::byte* map_shared(std::size_t bytes);

// What ranks share outside of Isthmus, whether they are threads or forked processes.
class rendezvous {
 public:
  // For `size` ranks; lives as long as the process.
  static rendezvous& create(int size);

  // Until all ranks have come.
  void wait();
  // Collective: another id at every call. Throws std::runtime_error on all ranks where rank 0 gets none.
  isthmus_unique_id new_unique_id(int rank);
  // Collective: everybody's values, by rank.
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

// Processes forked from this one, which must not have started threads before.
class child_processes {
 public:
  struct exit_report {
    int process;
    int status;  // as waitpid gives it
    // What its body returned. Where a signal ended it: 1, and a line that says so.
    int failures() const;
  };

  // Runs `body` in a new process, which exits with what it returns, at most 100.
  void start(int process, const std::function<int()>& body);
  // Waits for all. Once a signal has ended one, the others, which may wait for it, get `grace`.
  std::vector<exit_report> join(std::chrono::seconds grace_period = std::chrono::seconds(30));

 private:
  std::vector<std::pair<int, pid_t>> m_running;
};

// As where this process is on another machine: no flight recorder shows what its ranks do.
void remove_recordings();

// The calling thread's latest failure.
isthmus_error_info last_error();

}  // namespace topology
