// Text forms of ranks and calls, shared by error messages and `isthmus doctor`.
#pragma once

#include <string>
#include <vector>

#include "base/tables.hpp"
#include "recorder/reader.hpp"

namespace isthmus::recorder {

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
