#include "recorder/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "recorder/reader.hpp"

namespace isthmus::recorder {
namespace {

constexpr const char* prefix = "isthmus-";

// Files of one communicator, all of whose processes may have exited.
struct dead_communicator {
  double age_s = 0;  // of the newest file
  bool is_dead = true;
  std::vector<std::string> paths;
};

void remove(const dead_communicator& old) {
  for (const std::string& path : old.paths) ::unlink(path.c_str());
}

}  // namespace

std::string path_of_file(const token& communicator, int rank) {
  return fmt::format("{}/{}{}-{:016x}{:016x}-{}", shared_memory_folder, prefix, ::geteuid(), communicator[0],
                     communicator[1], rank);
}

std::vector<std::string> list_files() {
  const std::string own_prefix = ::geteuid() == 0 ? prefix : fmt::format("{}{}-", prefix, ::geteuid());
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(shared_memory_folder, ignored))
    if (file.path().filename().string().starts_with(own_prefix)) paths.push_back(file.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void remove_stale_files() noexcept {
  try {
    std::map<token, dead_communicator> by_token;
    const std::uint64_t now = monotonic_ns();
    for (const std::string& path : list_files()) {
      const auto record = read_file(path, now);
      if (!record) continue;
      dead_communicator& group = by_token[record->communicator];
      group.is_dead &= record->process == process_state::exited;
      group.age_s = group.paths.empty() ? record->age_s : std::min(group.age_s, record->age_s);
      group.paths.push_back(path);
    }
    std::vector<const dead_communicator*> dead_communicators;
    for (const auto& [communicator, each] : by_token)
      if (each.is_dead) dead_communicators.push_back(&each);
    std::sort(dead_communicators.begin(), dead_communicators.end(),
              [](auto* a, auto* b) { return a->age_s < b->age_s; });
    std::size_t file_count = 0;
    for (const dead_communicator* each : dead_communicators) {
      file_count += each->paths.size();
      if (each->age_s > max_stale_age_s || file_count > max_stale_files) remove(*each);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the next process tries again
  }
}

}  // namespace isthmus::recorder
