// Makes a device current for a scope; the caller's choice comes back.
#pragma once

#include <cstdio>
#include <string>

#include "backend/p2p/device.hpp"

namespace isthmus::p2p {

class device_guard {
 public:
  explicit device_guard(int device) {
    m_code = gpu_get_device(&m_before);
    if (m_code == gpu_success && m_before != device) m_code = gpu_set_device(device);
    m_changed = m_code == gpu_success && m_before != device;
  }
  ~device_guard() {
    if (m_changed) (void)gpu_set_device(m_before);
  }
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;
  gpu_error code() const { return m_code; }

 private:
  int m_before = -1;
  bool m_changed = false;
  gpu_error m_code{};
};

template <std::size_t N>
void copy_reason(char (&destination)[N], const std::string& text) {
  std::snprintf(destination, N, "%s", text.c_str());
}

}  // namespace isthmus::p2p
