// Health of the ranks of a communicator: one record per rank in shared memory, and the state of its process. Only
// ranks of this node are visible. Reading their health needs neither a store nor messages, so failures are found
// even if both the store and the messages of the backends have failed.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/process.hpp"

namespace isthmus {

// Returns true if the status only says that another rank failed. If the root cause is known, report it instead.
constexpr bool is_secondary_status(isthmus_status status) {
  return status == ISTHMUS_ERROR_ABORTED || status == ISTHMUS_ERROR_REMOTE;
}

// Health of one rank. The rank writes it, and its peers and `isthmus doctor` read it: it is part of the file of
// the rank's flight recorder (recorder/layout.hpp). All-zero memory is a healthy rank.
struct alignas(64) health_record {
  // local: the rank failed, but peers must not take over the failure. published: peers take it over.
  static constexpr std::uint32_t healthy = 0, unfinished = 1, local = 2, published = 3;
  // exiting: the process has left main() without destroying the communicator. It can live on for some seconds, for
  // example because it serves the store, but makes no more calls.
  static constexpr std::uint32_t open = 0, destroyed = 1, exiting = 2;

  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> has_aborted;   // 1: the rank no longer waits for its peers
  std::atomic<std::uint32_t> closing;       // open, destroyed or exiting
  std::atomic<std::uint32_t> awaited_rank;  // 1 + rank that a long wait is blocked on; 0: none
  std::array<std::byte, sizeof(failure_info)> failure_bytes;  // valid in the states local and published
  alignas(
      64) std::atomic<std::uint64_t> call_count;  // recorded calls; the latest one is in the recorder's ring

  // Stores the failure if it is the first one.
  void set_failure(const failure_info& first_failure, std::uint32_t new_state) noexcept;
  // Returns the first failure. Precondition: has_failed().
  failure_info failure() const noexcept;
  bool has_failed() const noexcept { return state.load(std::memory_order_acquire) >= local; }
};

// Address at which a rank can serve a fallback store (bootstrap/tcp_store.hpp). Plain bytes.
struct fallback_address {
  char host[62] = "";  // numeric; "": none
  std::uint16_t port = 0;
};

// Process of a rank, if it is visible from this node.
struct rank_process {
  std::int64_t pid = 0;  // 0: not visible
  std::uint64_t start = 0;
  health_record* record = nullptr;  // read-only for peers; NULL if it is not visible
  fallback_address fallback{};

  // Both count a process that is exiting as exited.
  process_state state() const noexcept;  // alive if it is not visible
  bool has_exited() const noexcept;
  // Returns true if the rank has destroyed its communicator. Its process may then exit without causing a
  // failure of its peers.
  bool has_destroyed_communicator() const noexcept { return is_closing(health_record::destroyed); }

 private:
  bool is_closing(std::uint32_t value) const noexcept {
    return record != nullptr && record->closing.load(std::memory_order_acquire) == value;
  }
};

// State of a rank's process, and whether the rank may have reported a failure before.
struct process_report {
  process_state state = process_state::alive;
  bool may_have_failed = false;
};
// The processes that explain a failure, and their common state.
struct process_failure {
  process_state state = process_state::alive;
  bool may_be_consequence = false;     // they may have exited because of a failure of another rank
  std::vector<std::size_t> processes;  // indices; empty if all processes are alive
};
// Finds the processes that explain a failure, in this order: exited without a report, stopped, exited after a
// report. A rank that times out because of a stopped rank reports that and then usually exits, so its exit
// explains nothing while a process is stopped.
process_failure find_process_failure(std::span<const process_report> reports);

// One rank's view of its peers' health.
class peer_monitor {
 public:
  peer_monitor(int rank, int size) : m_rank(rank), m_processes(static_cast<std::size_t>(size)) {}

  // Must not run concurrently with other calls. All other functions can be called by any thread.
  void watch(std::span<const rank_process> processes) {
    m_processes.assign(processes.begin(), processes.end());
  }
  const rank_process& process(int rank) const { return m_processes[static_cast<std::size_t>(rank)]; }
  // Returns true if the records of all ranks are visible, so no other channel is needed for failures.
  bool has_all_records() const noexcept;

  // Publishes a failure unless this rank has failed before. False if peers cannot see this rank's record.
  bool publish(const failure_info& failure) noexcept;
  // Converts a failure of this rank to the form in which it is published.
  failure_info make_failure_info(const error& failure) const;
  // Returns a failure that some rank has published or publishes within this time. Prefers root causes
  // to secondary failures.
  std::optional<failure_info> read_failure(double wait_s = 0) const noexcept;
  void throw_if_peer_failed() const;
  void mark_aborted() noexcept;
  // Returns whether that rank has aborted or aborts within this time; nullopt if its record is not visible.
  std::optional<bool> has_aborted(int rank, double wait_s) const noexcept;

  // Returns the lowest peer >= `first` whose process has exited.
  std::optional<int> find_exited(int first = 0) const noexcept;
  // Returns the lowest peer that exited before it destroyed its communicator.
  std::optional<int> find_lost() const noexcept;
  error exited_error(int rank) const;
  // Finds the ranks whose processes explain a failure.
  process_failure find_process_failure() const;
  // "1, 2 (its process is stopped)": the missing ranks and other ranks whose process has exited or is stopped.
  std::string describe(const std::vector<int>& missing_ranks) const;

 private:
  std::optional<failure_info> try_read_failure() const noexcept;

  int m_rank;
  std::vector<rank_process> m_processes;
};

// Creates the error that a wait throws because of another rank's failure.
error remote_failure(const failure_info& failure);

// Interval at which a wait checks the other processes.
inline constexpr auto poll_interval = std::chrono::milliseconds(500);

}  // namespace isthmus
