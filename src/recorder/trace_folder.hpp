// Settings of ISTHMUS_TRACE: the folder of this process's traces and their length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/files.hpp"

namespace isthmus::recorder {

struct trace_options {
  std::string folder;         // absolute path; "": no traces
  std::uint64_t entries = 0;  // number of most recent calls that a trace keeps; a power of two
  explicit operator bool() const { return !folder.empty(); }
};

// Reads the environment. Creates the folder if its parent exists. Throws error (CONFIG).
trace_options read_trace_options();

// Returns the path of a rank's trace. The token is random, so the path is unknown until
// the communicator exists.
std::string trace_path(const std::string& folder, const token& communicator, int rank);

// Returns the sorted paths of all traces in the folder. Throws error (INVALID_ARGUMENT) if the folder
// cannot be read.
std::vector<std::string> list_traces(const std::string& folder);

}  // namespace isthmus::recorder
