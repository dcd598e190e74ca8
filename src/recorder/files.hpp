// Files of the flight recorders: /dev/shm/isthmus-UID-TOKEN-RANK, readable only by their owner, and traces in the
// folder that ISTHMUS_TRACE names. The token is random, so no other user can create a file of that name first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::recorder {

using token = std::array<std::uint64_t, 2>;

inline constexpr const char* shared_memory_folder = "/dev/shm";

std::string path_of_file(const token& communicator, int rank);

// Returns the files of this user. Root sees the files of all users.
std::vector<std::string> list_files();

// Removes stale files: all processes of the communicator have exited, and the file is older than
// `max_stale_age_s` or not among the newest `max_stale_files`. Unreadable files stay.
void remove_stale_files() noexcept;

// Maximum age in seconds and maximum number of the files that are kept after a job has exited
// without removing them.
inline constexpr double max_stale_age_s = 600;
inline constexpr std::size_t max_stale_files = 64;

// ---- traces ------------------------------------------------------------------------------------------

// Settings of ISTHMUS_TRACE.
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
