// Statistics of intercepted calls: how many calls Isthmus handled (by path) and how many were passed through to
// the program's own library (by reason). Also prints the report. Shared by the MPI and NCCL front ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace isthmus::preload {

struct call_counter {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> nanoseconds{0};

  void add(std::uint64_t call_bytes, std::int64_t call_nanoseconds) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(call_bytes, std::memory_order_relaxed);
    nanoseconds.fetch_add(call_nanoseconds, std::memory_order_relaxed);
  }
};

// The reasons for passing a call through that all front ends have: X(code, text). Each front end adds its own.
#define ISTHMUS_PASS_REASONS(X)                         \
  X(no_data, "no data")                                 \
  X(one_rank, "communicator with one rank")             \
  X(no_backend, "not supported by any Isthmus backend") \
  X(rank_lost, "a rank failed or aborted")
#define ISTHMUS_PASS_REASON_CODE(code, text) code,
#define ISTHMUS_PASS_REASON_TEXT(code, text) text,

// Labels of one front end. Calls and reasons are plain numbers here.
struct statistics_labels {
  const char* front_end;  // "mpi", as used in messages
  const char* library;    // "MPI", the library that calls are passed through to
  const char* variable;   // environment variable that enables the report; any value except 0
  const char* const* calls;
  int call_count;
  const char* const* reasons;
  int reason_count;
};

// One object per process, never destroyed because calls can arrive until the process exits.
// Thread safety: all functions may be called from any thread.
class call_statistics {
 public:
  explicit call_statistics(const statistics_labels& labels);

  bool is_reporting() const noexcept { return m_is_reporting; }
  void count_passed_through(int call, int reason) noexcept {
    if (m_is_reporting) passed_through(call, reason).fetch_add(1, std::memory_order_relaxed);
  }
  // The counter of a path ("shm:packet"). It lives as long as the process.
  call_counter& counter_of(int call, const char* path);
  // Prints the report of this process to standard error, as rank `rank` of `size`.
  void print(int rank, int size);
  // Prints why an expected optimization is not used. Prints each text once per process. Prints nothing at
  // ISTHMUS_LOG=off or error.
  void warn_once(const char* text) noexcept;

 private:
  std::atomic<std::uint64_t>& passed_through(int call, int reason) {
    return m_passed_through[static_cast<std::size_t>(call) * static_cast<std::size_t>(m_labels.reason_count) +
                            static_cast<std::size_t>(reason)];
  }

  const statistics_labels& m_labels;
  const bool m_is_reporting;
  std::unique_ptr<std::atomic<std::uint64_t>[]> m_passed_through;
  std::mutex m_mutex;
  std::map<std::pair<int, std::string>, call_counter> m_handled;
  std::mutex m_warning_mutex;
  std::set<std::string> m_printed_warnings;
};

// Measures the time since construction. Does not read the clock if no report was requested.
class stopwatch {
 public:
  explicit stopwatch(const call_statistics& statistics)
      : m_begin(statistics.is_reporting() ? clock::now() : clock::time_point{}) {}
  std::int64_t nanoseconds() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - m_begin).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point m_begin;
};

}  // namespace isthmus::preload
