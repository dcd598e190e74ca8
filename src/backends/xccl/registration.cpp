#include "registration.hpp"

#include <algorithm>

namespace isthmus::xccl {

std::optional<registration> registration_of(const char* text) {
  const std::string_view asked = text != nullptr ? text : "buffers";
  if (asked == "off") return registration::off;
  if (asked == "buffers") return registration::buffers;
  if (asked == "windows") return registration::windows;
  return std::nullopt;
}

std::string registered_blocks::lacking() const {
  switch (m_how) {
    case registration::off: return "";
    case registration::buffers:
      return m_native->comm_register != nullptr && m_native->comm_deregister != nullptr ? "" : "CommRegister";
    case registration::windows:
      return m_native->window_register != nullptr && m_native->window_deregister != nullptr
                 ? ""
                 : "CommWindowRegister";
  }
  return "";
}

int registered_blocks::add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes) {
  void* handle = nullptr;
  const int result = m_how == registration::windows
                         ? m_native->window_register(comm, buffer, bytes, &handle, window_symmetric)
                         : m_native->comm_register(comm, buffer, bytes, &handle);
  if (result == native_success) m_entries.push_back({id, handle});
  return result;
}

void registered_blocks::release(native_comm comm, const entry& which) const {
  if (which.handle == nullptr) return;  // the library found nothing to gain
  if (m_how == registration::windows)
    m_native->window_deregister(comm, which.handle);
  else
    m_native->comm_deregister(comm, which.handle);
}

void registered_blocks::remove(native_comm comm, std::uint64_t id) {
  const auto found =
      std::find_if(m_entries.begin(), m_entries.end(), [id](const entry& each) { return each.id == id; });
  if (found == m_entries.end()) return;
  release(comm, *found);
  m_entries.erase(found);
}

void registered_blocks::clear(native_comm comm) {
  for (const entry& each : m_entries) release(comm, each);
  m_entries.clear();
}

}  // namespace isthmus::xccl
