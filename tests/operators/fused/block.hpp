#pragma once

#include <cstddef>
#include <vector>

#include "place.hpp"

namespace fused_test {

// Memory on the program's platform, with a host copy for the checks.
class block {
 public:
  block(std::uint64_t bytes, void* stream, void* external = nullptr)
      : m_host(bytes), m_stream(stream), m_is_external(external != nullptr), m_data(external) {
    if (!m_is_external && bytes > 0) m_data = allocate(bytes);
  }
  ~block() {
    if (!m_is_external && m_data != nullptr) release(m_data);
  }
  block(const block&) = delete;
  block& operator=(const block&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(m_data); }
  std::vector<std::byte>& host() { return m_host; }
  const std::vector<std::byte>& host() const { return m_host; }
  void upload() {
    if (!m_host.empty()) copy(m_data, m_host.data(), m_host.size(), m_stream);
  }
  void download() {
    if (!m_host.empty()) copy(m_host.data(), m_data, m_host.size(), m_stream);
  }

 private:
  std::vector<std::byte> m_host;
  void* m_stream;
  bool m_is_external;
  void* m_data;
};

}  // namespace fused_test
