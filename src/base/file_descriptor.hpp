// File descriptors: an owner, and duplicates of those of other processes.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace isthmus {

// Owning file descriptor (move-only).
class file_descriptor {
 public:
  file_descriptor() = default;
  explicit file_descriptor(int fd) : m_fd(fd) {}
  file_descriptor(file_descriptor&& other) noexcept : m_fd(std::exchange(other.m_fd, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(m_fd, other.m_fd);
    return *this;
  }
  ~file_descriptor() {
    if (m_fd >= 0) ::close(m_fd);
  }
  int get() const { return m_fd; }  // negative if empty

 private:
  int m_fd = -1;
};

[[noreturn]] inline void fail_duplicate(const char* call, std::int64_t pid, int code) {
  throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                   fmt::format("{} failed while duplicating a block's descriptor from process {}: {}", call,
                               pid, std::strerror(code)),
                   "use Linux 5.6 or newer, one user and one process namespace, and either "
                   "kernel.yama.ptrace_scope = 0 or the "
                   "capability SYS_PTRACE",
                   code);
}

// Returns a new descriptor for the same open file as `descriptor` of process `pid`, which must be alive. Both
// processes belong to the same user.
// Errors: throws isthmus::error (SYSTEM, errno) if the kernel or its policy does not allow it.
//
// Opening /proc/<pid>/fd/<n> does not work: it would open the device file again, without the state that the
// driver attached to the original descriptor.
inline int duplicate_descriptor(std::int64_t pid, int descriptor) {
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
