// Merged traces of a folder (ISTHMUS_TRACE): matched calls, aligned clocks and stragglers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/reader.hpp"

namespace isthmus::recorder {

// A machine: all processes of one boot share a monotonic clock.
struct traced_machine {
  std::string name, boot;
  std::int64_t offset_ns = 0;       // has been added to its times; they now use the first machine's clock
  std::int64_t uncertainty_ns = 0;  // plus or minus
  std::string alignment_source;     // the clocks or calls from which the offset was derived
};

struct traced_rank {
  recorded_rank record;
  std::size_t machine = 0;
  // Sums over the matched collectives: how often the rank arrived last, how long the other ranks together
  // waited for it, and how long it waited for others. The host does not wait in calls on streams, so such calls
  // add almost nothing.
  std::uint64_t last_arrivals = 0;
  std::int64_t others_waited_ns = 0, waited_ns = 0;
};

// One collective with the calls of all ranks that have a trace.
struct matched_call {
  std::vector<const recorded_call*> rank_calls;  // by index in traced_communicator::ranks
  std::size_t last = 0;                          // index of the rank that started last
  std::int64_t delay_ns = 0;                     // between the first and the last start
  std::int64_t waited_ns = 0;                    // sum over the other ranks
};

struct traced_communicator {
  std::vector<traced_rank> ranks;  // in rank order
  std::vector<matched_call> calls;
  std::uint64_t mismatched_calls = 0;  // collectives whose calls differ between ranks
  std::string state;                   // "ended", "running", "died", or "unknown" for ranks of another machine
  std::string sentence;                // diagnosis, unless the state is "ended"
};

struct trace {
  std::vector<traced_machine> machines;
  std::vector<traced_communicator> communicators;  // oldest first
  std::vector<std::string> skipped_files;          // with the reasons
};

// Reads and merges all traces of a folder. Throws error (INVALID_ARGUMENT) if none can be read.
trace read_traces(const std::string& folder);

// Converts all times to the first machine's clock: first with the real-time clocks, then with higher precision
// from collectives that no rank can leave before all ranks have started them.
void align(trace& merged_trace);

// Returns a JSON summary of the waits for `isthmus trace merge`.
std::string summary_of(const trace& merged_trace);

// Writes a timeline in Chrome's trace event format, for ui.perfetto.dev: one track per process,
// with one thread per rank of a communicator. Creates a new file that only its user can access.
// Throws error (INVALID_ARGUMENT).
void write_timeline(const trace& merged_trace, const std::string& path);

}  // namespace isthmus::recorder
