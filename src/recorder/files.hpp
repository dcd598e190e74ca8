// Where the recorders' files are: /dev/shm/isthmus-UID-TOKEN-RANK, readable by their owner alone. The token is
// random, so nobody can take a name before its owner does.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::recorder {

using token = std::array<std::uint64_t, 2>;

inline constexpr const char* shared_memory_folder = "/dev/shm";

std::string path_of_file(const token& communicator, int rank);

// Of this user; root's are everybody's.
std::vector<std::string> list_files();

// Removes files that nobody needs any more: none of the communicator's processes lives, and the file is older
// than `max_stale_age_s` or not among the newest `max_stale_files`. Leaves what it can't judge.
void remove_stale_files() noexcept;

// How long, and how many, stay after a job has ended without leaving in order.
inline constexpr double max_stale_age_s = 600;
inline constexpr std::size_t max_stale_files = 64;

}  // namespace isthmus::recorder
