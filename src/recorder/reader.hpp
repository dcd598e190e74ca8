// Reader for the files of flight recorders. It validates them and can read them while they are written.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/ticks.hpp"
#include "recorder/layout.hpp"

namespace isthmus::recorder {

// One recorded call of a rank.
struct recorded_call {
  std::uint64_t number = 0;  // counts the rank's collectives, or its messages
  call_signature signature;
  std::uint64_t count = 0;
  std::string path;  // "backend:algorithm"; "" for set-up steps
  entry_state state = entry_state::inside;
  // has_ended: the operation is known to be complete. With a blocking backend that is the end of the call.
  bool is_blocking = true, has_ended = false;
  double begin_age_s = 0, end_age_s = 0;  // seconds since the call started and returned
  // Monotonic clock of the rank's machine: passed to the backend, returned. 0: not yet.
  std::uint64_t begin_ns = 0, end_ns = 0;

  bool is_message() const {
    return signature.collective == ISTHMUS_SEND || signature.collective == ISTHMUS_RECV;
  }
  // Returns true if the operation is not known to be complete: it waits, has failed, or may still run
  // on a stream.
  bool is_pending() const { return !has_ended; }
};

// One rank of a communicator as recorded in its file.
// A process among those of all machines since their start. Another process can have the same pid.
struct process_identity {
  std::string boot;
  std::uint64_t pid_namespace = 0;
  std::int64_t pid = 0;
  std::uint64_t start = 0;  // increases with each process that gets this pid
  auto operator<=>(const process_identity&) const = default;
  bool has_pid_of(const process_identity& other) const {
    return boot == other.boot && pid_namespace == other.pid_namespace && pid == other.pid;
  }
};

struct recorded_rank {
  token communicator{};
  int rank = 0, size = 0;
  std::int64_t pid = 0;
  std::uint64_t pid_namespace = 0, start = 0;  // of the process
  process_state process = process_state::alive;
  bool is_remote = false;  // other machine or pid namespace: the state of the process is unknown
  std::string program, machine, boot;
  bool is_closed = false;           // the rank has destroyed the communicator
  std::uint64_t call_count = 0;     // number of recorded calls; `calls` has the ones that are kept
  clock_sample clocks{};            // latest sample of all clocks
  double age_s = 0, created_s = 0;  // seconds since the last entry and since the file was created
  double timeout_s = 0;
  std::string failure;               // "": healthy
  int awaited_rank = -1;             // that a long wait is blocked on; -1: none
  std::vector<std::int64_t> pids;    // by rank; 0: other machine
  std::vector<recorded_call> calls;  // oldest first

  process_identity identity() const { return {boot, pid_namespace, pid, start}; }
  // Returns the latest collective, or NULL.
  const recorded_call* last_collective() const;
  const recorded_call* collective(std::uint64_t number) const;  // NULL: overwritten, or not called yet
  std::uint64_t collectives() const;                            // number of collectives so far
};

// Reads one file. Returns nullopt if the file does not exist or cannot be read. Ages are relative to `now_ns` of
// the monotonic clock: use one value for all files whose times are compared.
std::optional<recorded_rank> read_file(const std::string& path, std::uint64_t now_ns = monotonic_ns());

// Reads the ranks of a communicator whose files are on this machine, in rank order.
std::vector<recorded_rank> read_communicator(const token& communicator, int size);

}  // namespace isthmus::recorder
