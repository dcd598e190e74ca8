// What the preloaded libraries did with a program's calls: taken, by path, or left to the program's own
// library, by reason; and the report of it. Shared by the front ends of MPI and NCCL.
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

  void add(std::uint64_t more_bytes, std::int64_t more_nanoseconds) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(more_bytes, std::memory_order_relaxed);
    nanoseconds.fetch_add(more_nanoseconds, std::memory_order_relaxed);
  }
};

// The words of one front end; its calls and reasons are numbers here.
struct statistics_labels {
  const char* front_end;  // "mpi", as in messages
  const char* library;    // "MPI", to which calls are left
  const char* variable;   // set, to anything but 0: a report is asked for
  const char* const* calls;
  int call_count;
  const char* const* reasons;
  int reason_count;
};

// One in a process, never destroyed: calls may come until the very end. Any thread.
class call_statistics {
 public:
  explicit call_statistics(const statistics_labels& labels);

  bool is_reporting() const noexcept { return m_is_reporting; }
  void count_passed_through(int call, int reason) noexcept {
    if (m_is_reporting) passed_through(call, reason).fetch_add(1, std::memory_order_relaxed);
  }
  // Of a path ("shm:packet"); it lives as long as the process.
  call_counter& counter_of(int call, const char* path);
  // To standard error, for this process as that rank of the program.
  void print(int rank, int size);
  // Why something that was hoped for is not done. Each text once in a process; nothing at ISTHMUS_LOG=off or
  // error.
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

// The time from its making; nothing is measured where nothing is reported.
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
