// File descriptors: an owner, and duplicates of those of other processes.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

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

// Returns a new descriptor for the same open file as `descriptor` of process `pid`, which must be alive. Both
// processes belong to the same user.
// Errors: throws isthmus::error (SYSTEM, errno) if the kernel or its policy does not allow it.
int duplicate_descriptor(std::int64_t pid, int descriptor);

}  // namespace isthmus
