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

// The words of one front end; its calls and reasons are numbers here.
struct ledger_words {
  const char* front_end;  // "mpi", as in messages
  const char* library;    // "MPI", to which calls are left
  const char* variable;   // set, to anything but 0: a report is asked for
  const char* const* calls;
  int call_count;
  const char* const* reasons;
  int reason_count;
};

// One in a process, never destroyed: calls may come until the very end. Any thread.
class ledger {
 public:
  explicit ledger(const ledger_words& words);

  bool is_reporting() const noexcept { return m_is_reporting; }
  void count_passed(int call, int reason) noexcept {
    if (m_is_reporting) passed(call, reason).fetch_add(1, std::memory_order_relaxed);
  }
  // Of a path ("shm:packet"); it lives as long as the process.
  tally& tally_of(int call, const char* path);
  // To standard error, for this process as that rank of the program.
  void print(int rank, int size);
  // Why something that was hoped for is not done. Each text once in a process; nothing at ISTHMUS_LOG=off or
  // error.
  void warn_once(const char* text) noexcept;

 private:
  std::atomic<std::uint64_t>& passed(int call, int reason) {
    return m_passed[static_cast<std::size_t>(call) * static_cast<std::size_t>(m_words.reason_count) +
                    static_cast<std::size_t>(reason)];
  }

  const ledger_words& m_words;
  const bool m_is_reporting;
  std::unique_ptr<std::atomic<std::uint64_t>[]> m_passed;
  std::mutex m_mutex;
  std::map<std::pair<int, std::string>, tally> m_taken;
  std::mutex m_said_mutex;
  std::set<std::string> m_said;
};

// The time from its making; nothing is measured where nothing is reported.
class stopwatch {
 public:
  explicit stopwatch(const ledger& books)
      : m_begin(books.is_reporting() ? clock::now() : clock::time_point{}) {}
  std::int64_t nanoseconds() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - m_begin).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point m_begin;
};

}  // namespace isthmus::preload
