// What the traces of a folder (ISTHMUS_TRACE) tell together: calls matched, clocks aligned, stragglers named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/reader.hpp"

namespace isthmus::recorder {

// All processes of one boot have one monotonic clock.
struct traced_machine {
  std::string name, boot;
  std::int64_t offset_ns = 0;       // was added to its times, which are of the first machine's clock now
  std::int64_t uncertainty_ns = 0;  // either way
  std::string alignment_source;                  // the offset was found
};

struct traced_rank {
  recorded_rank record;
  std::size_t machine = 0;
  // Over the collectives that were matched: how often it came last, how long the others together waited for it,
  // and how long it waited for others. Of calls on streams the host does not wait.
  std::uint64_t last_arrivals = 0;
  std::int64_t others_waited_ns = 0, waited_ns = 0;
};

// One collective, as the ranks made it whose traces are there.
struct matched_call {
  std::vector<const recorded_call*> rank_calls;  // by position among the communicator's ranks
  std::size_t last = 0;                   // who began last, by that position
  std::int64_t delay_ns = 0;             // the first
  std::int64_t waited_ns = 0;             // the others together
};

struct traced_communicator {
  std::vector<traced_rank> ranks;  // in their order
  std::vector<matched_call> calls;
  std::uint64_t mismatched_calls = 0;  // collectives whose ranks disagree; they are not matched
  std::string state;            // "ended", "running", "died" or "unknown": elsewhere, and not ended in order
  std::string sentence;         // where it has not ended: who kept whom waiting
};

struct trace {
  std::vector<traced_machine> machines;
  std::vector<traced_communicator> communicators;  // the oldest first
  std::vector<std::string> skipped_files;               // files, each with the reason
};

// Throws error (INVALID_ARGUMENT) where the folder holds nothing that can be read.
trace read_traces(const std::string& folder);

// Gives all times on the first machine's clock: by the clocks of day, then by collectives that no rank leaves
// before all have begun it, as far as they say more.
void align(trace& of);

// JSON: who waited for whom, for `isthmus trace merge`.
std::string summary_of(const trace& of);

// The trace event format of Chrome, which ui.perfetto.dev opens: a process each, within it a rank of a
// communicator each. A new file, for its user alone. Throws error (INVALID_ARGUMENT).
void write_timeline(const trace& of, const std::string& path);

}  // namespace isthmus::recorder
