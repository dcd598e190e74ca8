// ISTHMUS_TRACE: where this process keeps traces of all calls, and how long they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/files.hpp"

namespace isthmus::recorder {

struct trace_options {
  std::string folder;         // "": no traces; else absolute
  std::uint64_t entries = 0;  // calls that a trace keeps, a power of two: the latest
  explicit operator bool() const { return !folder.empty(); }
};

// Of the environment. Makes the folder where its parent is there. Throws error (CONFIG).
trace_options read_trace_options();

// Its name is not known before the communicator is: its token is random.
std::string path_of_trace(const std::string& folder, const token& communicator, int rank);

// What has such a name in that folder, sorted. Throws error (INVALID_ARGUMENT) where it can't be read.
std::vector<std::string> list_traces(const std::string& folder);

}  // namespace isthmus::recorder
