// Diagnosis of a communicator that waits: the responsible ranks and one sentence, derived from the flight
// recorders of its ranks. Error messages of the core and `isthmus doctor` print it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tables.hpp"
#include "recorder/reader.hpp"

namespace isthmus::recorder {

enum class diagnosis_kind : std::uint8_t {
  none,       // no rank waits
  mismatch,   // ranks made different calls with the same number
  exited,     // a process has exited
  stopped,    // a process is stopped
  destroyed,  // a rank destroyed its communicator
  missing,    // a rank has not entered the call in which others wait
  remote,     // missing ranks, if any, run on other machines
  slow        // all ranks have entered the call
};
const char* name_of(diagnosis_kind kind);

struct diagnosis {
  diagnosis_kind kind = diagnosis_kind::none;
  std::vector<int> responsible_ranks;  // both ranks if two ranks disagree
  bool is_awaited = false;             // other ranks are known to wait for the responsible rank
  double waiting_s = 0;                // time that the other ranks have waited
  std::string sentence;
  bool is_message_wait = false;  // the cause is inferred only from ranks that wait for messages
};

// Diagnoses the ranks of one communicator whose files are on this machine. Requires at least one rank.
diagnosis diagnose(const std::vector<recorded_rank>& ranks);

// ---- report for `isthmus doctor` -----------------------------------------------------------------------

// Returns JSON with the jobs that process `pid` belongs to (0: all) and whose names start with `name_prefix`
// ("": all). Processes that share a communicator, directly or through other processes, belong to the same job.
// A job is named after its oldest communicator. With `trace_folder` ("": none), reports the state at the end of
// the traces in this folder instead. Throws error (INVALID_ARGUMENT) if the folder cannot be read.
std::string report(std::int64_t pid, const std::string& name_prefix, const std::string& trace_folder = "");

// ---- text forms of ranks and calls -------------------------------------------------------------------

// Formats "float32 x 1024, sum, root 2". Includes only the arguments that the collective uses, and omits
// an empty count.
std::string arguments_text(const collective_row& row, int datatype, const std::string& count, int op, int root);
std::string name_of(const call_signature& signature);                 // "allreduce"
std::string text_of(const recorded_call& call, bool includes_path);   // "allreduce #17 (float32 x 1024, sum)"
std::string text_of(setup_step step, std::uint64_t count);            // "heap_allocate (64 bytes)"
std::string format_seconds(double value);                             // "12.3 s"
std::string list_of(const std::vector<int>& ranks);                   // "rank 2", "ranks 0, 1 and 3"
std::string list_of(const std::vector<const recorded_rank*>& ranks);  // "rank 2 (pid 4711)"
std::string last_call_of(
    const recorded_rank& rank);  // "its last call was broadcast #16 (...), ended 12.4 s ago"

// Returns whether the collectives of two ranks with the same number match.
bool calls_match(const recorded_call& a, const recorded_call& b);

}  // namespace isthmus::recorder
