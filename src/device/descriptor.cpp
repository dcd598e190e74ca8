#include "device/descriptor.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace isthmus {
namespace {

[[noreturn]] void fail_duplicate(const char* call, std::int64_t pid, int code) {
  throw make_error(
      ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
      fmt::format("{}, to take a block's descriptor from process {}: {}", call, pid, std::strerror(code)),
      "it needs Linux 5.6, one user, one process namespace, and no kernel.yama.ptrace_scope above 0 "
      "or the capability SYS_PTRACE",
      code);
}

}  // namespace

// Opening /proc/<pid>/fd/<n> would not do: it opens the device file anew, without what the driver tied to it.
int duplicate_descriptor(std::int64_t pid, int descriptor) {
  if (pid == getpid()) {
    const int duplicate = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0) fail_duplicate("dup", pid, errno);
    return duplicate;
  }
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (process < 0) fail_duplicate("pidfd_open", pid, errno);
  const auto duplicate = static_cast<int>(syscall(SYS_pidfd_getfd, process, descriptor, 0));
  const int code = errno;
  ::close(process);
  if (duplicate < 0) fail_duplicate("pidfd_getfd", pid, code);
  return duplicate;
}

}  // namespace isthmus
