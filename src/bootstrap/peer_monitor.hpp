// Monitor of the other ranks' processes: whether they run, and which failures they have published in memory
// that the ranks of a node share. It needs neither a store nor messages, so it works even if both have failed.
#pragma once

#include <isthmus/types.h>

#include <atomic>
#include <chrono>
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

// Shared-memory record that one rank writes and its peers read: the first failure that it detected (written
// once), whether it has aborted, and finally whether it has destroyed its communicator.
struct failure_record {
  static constexpr std::uint32_t empty = 0, unfinished = 1, written = 2;
  std::atomic<std::uint32_t> state;
  failure_info failure;
  std::atomic<std::uint32_t> has_aborted;
  std::atomic<std::uint32_t> has_destroyed_communicator;
};

// Address at which a rank can serve a fallback store (fallback_store.hpp). Plain bytes.
struct fallback_address {
  char host[62] = "";  // numeric; "": none
  std::uint16_t port = 0;
};

// Process of a rank, if it is visible from this node.
struct rank_process {
  std::int64_t pid = 0;  // 0: not visible
  std::uint64_t start = 0;
  failure_record* record = nullptr;  // zeroed shared memory, or NULL
  fallback_address fallback{};

  process_state state() const noexcept;  // alive if it is not visible
  // Returns true if the rank has destroyed its communicator. Its process may then exit without causing a
  // failure of its peers.
  bool has_destroyed_communicator() const noexcept;
};

// Returns the lowest rank >= `first`, except `own_rank`, whose process is in this state.
std::optional<int> find_in_state(std::span<const rank_process> processes, process_state state, int own_rank,
                                 int first = 0) noexcept;

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

  // Publishes a failure unless this rank has published one before. False if this rank has no record.
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
  std::optional<int> find_exited(int first = 0) const noexcept {
    return find_in_state(m_processes, process_state::exited, m_rank, first);
  }
  // Returns the lowest peer that exited before it destroyed its communicator.
  std::optional<int> find_lost() const noexcept;
  error exited_error(int rank) const;
  // "1, 2 (its process is stopped)": the missing ranks and other ranks whose process has exited or is stopped.
  // If it is uncertain which ranks are missing, lists only the latter.
  std::string describe(const std::vector<int>& missing_ranks, bool is_certain = true) const;

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
