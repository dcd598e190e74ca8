// Owning file descriptor (move-only).
#pragma once

#include <unistd.h>

#include <utility>

namespace isthmus {

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

}  // namespace isthmus
