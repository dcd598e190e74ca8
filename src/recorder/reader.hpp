// Reads the files of flight recorders from outside: as values, checked, while they are written and afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/ticks.hpp"
#include "recorder/files.hpp"
#include "recorder/layout.hpp"

namespace isthmus::recorder {

// One call, as its rank wrote it.
struct recorded_call {
  std::uint64_t number = 0;  // among the rank's collectives, or among its messages
  call_signature signature;
  std::uint64_t count = 0;
  std::string path;  // "backend:algorithm"; "" for steps
  entry_state state = entry_state::inside;
  // The operation's end is known: the call's own, for a backend that blocks.
  bool is_blocking = true, has_ended = false;
  double begin_age_s = 0, end_age_s = 0;  // ago, of the call
  // Of its machine's monotonic clock: asked for, handed to the backend, returned. 0: not yet, or not known.
  std::uint64_t requested_ns = 0, begin_ns = 0, end_ns = 0;
  std::uint32_t reason = 0;  // its index among the rank's reasons

  bool is_message() const { return signature.collective == ISTHMUS_SEND || signature.collective == ISTHMUS_RECV; }
  // Nobody knows that it has ended: it waits, it gave up waiting, or a stream may still have it.
  bool is_pending() const { return !has_ended; }
};

struct recorded_rank {
  token communicator{};
  int rank = 0, size = 0;
  std::int64_t pid = 0;
  process_state process = process_state::alive;
  bool is_elsewhere = false;  // of another machine or pid namespace: nothing is known of the process
  std::string program, machine, boot;
  bool is_closed = false;     // its rank has left in order
  std::uint64_t call_count = 0;  // calls; `calls` has those that are kept
  clock_sample clocks{};            // the latest moment at which all of them were read
  std::vector<std::string> reasons;
  double age_s = 0, created_s = 0;  // ago: what it wrote last, and when it began
  double timeout_s = 0;
  std::string failure;             // "": healthy
  std::vector<std::int64_t> pids;  // by rank; 0: on another machine
  std::vector<recorded_call> calls;    // oldest first

  // The latest collective; null: none yet.
  const recorded_call* last_collective() const;
  const recorded_call* collective(std::uint64_t number) const;  // null: not kept, or not yet called
  std::uint64_t collectives() const;                        // called so far
};

// Nothing where there is no such file, or none of this version; `problem`, unless NULL, says which. What is
// `ago` is so at `now_ns` of the monotonic clock: the same for all files whose times are compared.
std::optional<recorded_rank> read_file(const std::string& path, std::uint64_t now_ns = monotonic_ns(),
                                   std::string* problem = nullptr);

// Those of its ranks whose files are on this machine, in the order of ranks.
std::vector<recorded_rank> read_communicator(const token& communicator, int size);

}  // namespace isthmus::recorder
