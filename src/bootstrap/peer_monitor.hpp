// What a rank sees of the other ranks' processes while it waits for them: whether they run, and what failure
// they have written down in memory that the ranks of a machine share. Needs no store and no message, so it
// works whatever has become of those.
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

// Statuses that only say that another rank failed: a cause, where one is known, tells more.
constexpr bool is_secondary_status(isthmus_status status) {
  return status == ISTHMUS_ERROR_ABORTED || status == ISTHMUS_ERROR_REMOTE;
}

// Where a rank writes the failure that it was the first to know of, once, that it waits for nobody any more,
// and at last that it has destroyed its communicator. All others read.
struct failure_record {
  static constexpr std::uint32_t empty = 0, unfinished = 1, written = 2;
  std::atomic<std::uint32_t> state;
  failure_info failure;
  std::atomic<std::uint32_t> has_aborted;
  std::atomic<std::uint32_t> has_destroyed_communicator;
};

// Where a rank would serve a store in the place of its communicator's (fallback_store.hpp). Plain bytes.
struct fallback_address {
  char host[62] = "";  // numeric; "": nowhere
  std::uint16_t port = 0;
};

// The process of a rank, where it can be seen from here.
struct rank_process {
  std::int64_t pid = 0;  // 0: it can't
  std::uint64_t start = 0;
  failure_record* record = nullptr;  // zeroed shared memory; NULL: there is none
  fallback_address fallback{};

  process_state state() const noexcept;  // alive where it can't be seen
  // It has destroyed its communicator, and may end without harm to the others.
  bool has_destroyed_communicator() const noexcept;
};

// The first of the ranks from `first` on, but not `own`, whose process is in this state.
std::optional<int> find_in_state(std::span<const rank_process> processes, process_state state, int own,
                                 int first = 0) noexcept;

class peer_monitor {
 public:
  peer_monitor(int rank, int size) : m_rank(rank), m_processes(static_cast<std::size_t>(size)) {}

  // Not while other threads call the rest, which any thread may.
  void watch(std::span<const rank_process> processes) {
    m_processes.assign(processes.begin(), processes.end());
  }
  const rank_process& process(int rank) const { return m_processes[static_cast<std::size_t>(rank)]; }
  // Notices of all ranks can be read from here, so nobody has to be told in another way.
  bool has_all_records() const noexcept;

  // Writes the failure down, unless this rank has written one before. False where it has no notice.
  bool publish(const failure_info& failure) noexcept;
  // A failure of this rank, as it is told to others.
  failure_info own_failure(const error& failure) const;
  // What some rank has written, or writes within this time: a cause, if there is one, else what follows from
  // it.
  std::optional<failure_info> read_failure(double wait_s = 0) const noexcept;
  void throw_if_peer_failed() const;
  void mark_aborted() noexcept;
  // Whether that rank has, or does within this time; nothing where it has no notice that can be read from here.
  std::optional<bool> has_aborted(int rank, double wait_s) const noexcept;

  // The first ended one of the other ranks from `first` on.
  std::optional<int> find_exited(int first = 0) const noexcept {
    return find_in_state(m_processes, process_state::exited, m_rank, first);
  }
  // The first that ended before it had left.
  std::optional<int> find_lost() const noexcept;
  error exited_error(int rank) const;
  // "1, 2 (its process is stopped)": of ranks that did not come, and of others that can't go on; of these alone
  // where it is not certain who came.
  std::string describe(const std::vector<int>& missing, bool is_certain = true) const;

 private:
  std::optional<failure_info> try_read_failure() const noexcept;

  int m_rank;
  std::vector<rank_process> m_processes;
};

// What a wait tells of another rank's failure.
error remote_failure(const failure_info& failure);

// How often a wait looks at the other processes.
inline constexpr auto poll_interval = std::chrono::milliseconds(500);

}  // namespace isthmus
