#include "base/process.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace isthmus {
namespace {

// The fields behind the name, which may hold anything: the state is the first. "" when there is no such task.
std::string fields_of(const std::string& task) {
  std::ifstream file(task + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 > line.size() ? "" : line.substr(name_end + 2);
}

process_state state_of(std::int64_t pid) noexcept {
  try {
    bool any = false, all_stopped = true;
    for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
      const std::string fields = fields_of(task.path());
      if (fields.empty() || fields[0] == 'Z' || fields[0] == 'X') continue;
      any = true;
      all_stopped &= fields[0] == 'T' || fields[0] == 't';
    }
    return !any ? process_state::gone : all_stopped ? process_state::stopped : process_state::alive;
  } catch (const std::filesystem::filesystem_error& problem) {
    return problem.code() == std::errc::no_such_file_or_directory ||
                   problem.code() == std::errc::no_such_process
               ? process_state::gone
               : process_state::alive;
  } catch (...) {
    return process_state::alive;  // no memory, no descriptor: nothing is known
  }
}

}  // namespace

std::uint64_t start_of_process(std::int64_t pid) noexcept {
  try {
    constexpr int fields_before = 19;  // state is field 3 of proc(5), the start time field 22
    std::istringstream fields(fields_of(fmt::format("/proc/{}", pid)));
    std::string skipped;
    for (int i = 0; i < fields_before; ++i) fields >> skipped;
    std::uint64_t start = 0;
    fields >> start;
    return fields ? start : 0;
  } catch (...) {
    return 0;
  }
}

process_state look_at_process(std::int64_t pid, std::uint64_t start) noexcept {
  const process_state seen = state_of(pid);
  if (seen == process_state::gone || start == 0) return seen;
  const std::uint64_t now = start_of_process(pid);
  return now != 0 && now != start ? process_state::gone : seen;
}

std::uint64_t own_pid_namespace() noexcept {
  struct stat status{};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string own_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace isthmus
