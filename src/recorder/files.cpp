#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/trust.hpp"
#include "recorder/layout.hpp"
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

constexpr const char* trace_extension = ".trace";
constexpr std::uint64_t default_entries = 1u << 17;  // 8 MiB
constexpr std::uint64_t min_entries = 256;

error invalid_variable(const char* variable, const std::string& value, const std::string& rule,
                       const std::string& hint) {
  return make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                    fmt::format("environment {}: \"{}\" {}", variable, value, rule), hint);
}

std::uint64_t read_entries() {
  const char* const text = environment_variable("ISTHMUS_TRACE_CALLS");
  if (text == nullptr || *text == '\0') return default_entries;
  const std::string_view value = text;
  std::uint64_t entries = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), entries);
  if (problem != std::errc() || end != value.data() + value.size() || entries < min_entries ||
      entries > max_entries)
    throw invalid_variable("ISTHMUS_TRACE_CALLS", text,
                           fmt::format("must be a number from {} to {}", min_entries, max_entries),
                           "set the number of calls per communicator that each rank keeps, at 64 bytes each");
  return std::bit_ceil(entries);
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

// ---- traces ------------------------------------------------------------------------------------------

trace_options read_trace_options() {
  const char* const text = environment_variable("ISTHMUS_TRACE");
  if (text == nullptr || *text == '\0') return {};
  const std::string folder = std::filesystem::absolute(text).lexically_normal().string();
  const char* const hint = "name a writable directory, or a new one in a writable directory";
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    throw invalid_variable("ISTHMUS_TRACE", text, fmt::format("cannot be created: {}", std::strerror(errno)),
                           hint);
  struct stat status{};
  if (::stat(folder.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
    throw invalid_variable("ISTHMUS_TRACE", text, "is not a directory", hint);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw invalid_variable("ISTHMUS_TRACE", text, fmt::format("is not writable: {}", std::strerror(errno)),
                           hint);
  return {folder, read_entries()};
}

std::string trace_path(const std::string& folder, const token& communicator, int rank) {
  return fmt::format("{}/isthmus-{:016x}{:016x}-{}{}", folder, communicator[0], communicator[1], rank,
                     trace_extension);
}

std::vector<std::string> list_traces(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code problem;
  for (std::filesystem::directory_iterator file(folder, problem), end; !problem && file != end;
       file.increment(problem))
    if (file->path().extension() == trace_extension) paths.push_back(file->path().string());
  if (problem)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("trace: {} cannot be read: {}", folder, problem.message()),
                     "use the folder that ISTHMUS_TRACE was set to");
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace isthmus::recorder
