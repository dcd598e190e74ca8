#include "base/process.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace isthmus {
namespace {

std::string folder_of(std::int64_t pid) { return "/proc/" + std::to_string(pid); }

// Returns the fields of /proc/<task>/stat that follow the process name, because the name can contain any
// character. The first field is the state. Returns "" if the task does not exist, and throws if it is unknown
// whether the task exists, for example because file descriptors are exhausted.
std::string read_stat_fields(const std::string& task) {
  errno = 0;
  std::ifstream file(task + "/stat");
  if (!file.is_open() && errno != ENOENT && errno != ESRCH)
    throw std::system_error(errno, std::generic_category());
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 > line.size() ? "" : line.substr(name_end + 2);
}

// Returns 0 if the fields contain no start time.
std::uint64_t start_time_in(const std::string& stat_fields) {
  constexpr int skipped_fields = 19;  // in proc(5), the state is field 3 and the start time is field 22
  std::istringstream fields(stat_fields);
  std::string field;
  for (int i = 0; i < skipped_fields; ++i) fields >> field;
  std::uint64_t start = 0;
  fields >> start;
  return fields ? start : 0;
}

process_state read_task_states(std::int64_t pid) noexcept {
  try {
    bool has_live_task = false, are_all_stopped = true;
    for (const auto& task : std::filesystem::directory_iterator(folder_of(pid) + "/task")) {
      const std::string fields = read_stat_fields(task.path());
      if (fields.empty() || fields[0] == 'Z' || fields[0] == 'X') continue;
      has_live_task = true;
      are_all_stopped &= fields[0] == 'T' || fields[0] == 't';
    }
    return !has_live_task    ? process_state::exited
           : are_all_stopped ? process_state::stopped
                             : process_state::alive;
  } catch (const std::filesystem::filesystem_error& problem) {
    return problem.code() == std::errc::no_such_file_or_directory ||
                   problem.code() == std::errc::no_such_process
               ? process_state::exited
               : process_state::alive;
  } catch (...) {
    return process_state::alive;  // out of memory or file descriptors: the state is unknown
  }
}

}  // namespace

std::uint64_t process_start_time(std::int64_t pid) noexcept {
  try {
    return start_time_in(read_stat_fields(folder_of(pid)));
  } catch (...) {
    return 0;
  }
}

std::int64_t parent_process(std::int64_t pid) noexcept {
  try {
    std::istringstream fields(read_stat_fields(folder_of(pid)));
    char state = 0;
    std::int64_t parent = 0;
    fields >> state >> parent;
    return fields ? parent : 0;
  } catch (...) {
    return 0;
  }
}

bool has_process_exited(std::int64_t pid, std::uint64_t start) noexcept {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return true;
  try {
    const std::string fields = read_stat_fields(folder_of(pid));
    if (fields.empty()) return true;
    if (start != 0 && start_time_in(fields) != start) return true;
    const bool has_first_thread_ended = fields[0] == 'Z' || fields[0] == 'X';  // others may still run
    return has_first_thread_ended && read_task_states(pid) == process_state::exited;
  } catch (...) {
    return false;
  }
}

process_state read_process_state(std::int64_t pid, std::uint64_t start) noexcept {
  return has_process_exited(pid, start) ? process_state::exited : read_task_states(pid);
}

std::uint64_t current_pid_namespace() noexcept {
  struct stat status{};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string current_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace isthmus
