// What was done with the program's calls: counted always where it costs nothing, timed where a report is asked
// for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "frontends/mpi/calls.hpp"

namespace isthmus::mpi_shim {

// Why a call was left to MPI.
enum class reason {
  nothing_to_move,
  left_to_check,
  datatype,
  operation,
  uneven_counts,
  one_rank,
  intercommunicator,
  not_running,
  device_memory,
  no_communicator,
  unsupported,
  lost,
  first_calls,
};
inline constexpr int reason_count = 13;

struct tally {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> nanoseconds{0};

  void add(std::uint64_t more_bytes, std::int64_t more_nanoseconds) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(more_bytes, std::memory_order_relaxed);
    nanoseconds.fetch_add(more_nanoseconds, std::memory_order_relaxed);
  }
};

// ISTHMUS_MPI_REPORT is set, to anything but 0. Asked once.
bool is_reporting() noexcept;

void count_passed(call which, reason why) noexcept;

// The tally of a path ("host:packet"); it lives as long as the process. Any thread.
tally& tally_of(call which, const char* path);

// To standard error, for this process as that rank of MPI_COMM_WORLD.
void print_report(int rank, int size);

// Why something that was hoped for is not done. Each text once in a process; nothing at ISTHMUS_LOG=off or
// error.
void warn_once(const char* text) noexcept;

// The time from its making; nothing is measured where nothing is reported.
class stopwatch {
 public:
  stopwatch() : m_begin(is_reporting() ? clock::now() : clock::time_point{}) {}
  std::int64_t nanoseconds() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - m_begin).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point m_begin;
};

}  // namespace isthmus::mpi_shim
