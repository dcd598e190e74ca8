// How the sentences about ranks and calls spell them. One place, so that errors and `isthmus doctor` agree.
#pragma once

#include <string>
#include <vector>

#include "base/tables.hpp"
#include "recorder/reader.hpp"

namespace isthmus::recorder {

// "float32 x 1024, sum, root 2": of these what a collective of this kind has; count "": nothing of it is said.
std::string arguments_text(const collective_row& row, int datatype, const std::string& count, int op, int root);
std::string name_of(const signature& asked);                      // "allreduce"
std::string text_of(const seen_call& call, bool with_path);       // "allreduce #17 (float32 x 1024, sum)"
std::string text_of(step what, std::uint64_t count);              // "heap_allocate (64 bytes)"
std::string seconds(double value);                                // "12.3 s"
std::string list_of(const std::vector<int>& ranks);               // "rank 2", "ranks 0, 1 and 3"
std::string list_of(const std::vector<const seen_rank*>& ranks);  // "rank 2 (pid 4711)"
std::string last_call_of(const seen_rank& rank);  // "its last call was broadcast #16 (...), ended 12.4 s ago"

// Whether two ranks' collectives of one number can meet.
bool agree(const seen_call& a, const seen_call& b);

}  // namespace isthmus::recorder
