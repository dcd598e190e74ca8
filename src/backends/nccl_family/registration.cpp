#include "registration.hpp"

#include <algorithm>

namespace isthmus::nccl_family {

std::optional<registration_mode> parse_registration_mode(const char* text) {
  const std::string_view name = text != nullptr ? text : "buffers";
  if (name == "off") return registration_mode::off;
  if (name == "buffers") return registration_mode::buffers;
  if (name == "windows") return registration_mode::windows;
  return std::nullopt;
}

std::string registered_blocks::missing_function() const {
  switch (m_mode) {
    case registration_mode::off: return "";
    case registration_mode::buffers:
      return m_native->comm_register != nullptr && m_native->comm_deregister != nullptr ? "" : "CommRegister";
    case registration_mode::windows:
      return m_native->window_register != nullptr && m_native->window_deregister != nullptr
                 ? ""
                 : "CommWindowRegister";
  }
  return "";
}

int registered_blocks::add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes) {
  void* handle = nullptr;
  const int result = m_mode == registration_mode::windows
                         ? m_native->window_register(comm, buffer, bytes, &handle, window_symmetric)
                         : m_native->comm_register(comm, buffer, bytes, &handle);
  if (result == native_success) m_entries.push_back({id, handle});
  return result;
}

void registered_blocks::release(native_comm comm, const registered_block& block) const {
  if (block.handle == nullptr) return;  // the library did not need to register this block
  if (m_mode == registration_mode::windows)
    m_native->window_deregister(comm, block.handle);
  else
    m_native->comm_deregister(comm, block.handle);
}

void registered_blocks::remove(native_comm comm, std::uint64_t id) {
  const auto position = std::find_if(m_entries.begin(), m_entries.end(),
                                     [id](const registered_block& block) { return block.id == id; });
  if (position == m_entries.end()) return;
  release(comm, *position);
  m_entries.erase(position);
}

void registered_blocks::clear(native_comm comm) {
  for (const registered_block& block : m_entries) release(comm, block);
  m_entries.clear();
}

}  // namespace isthmus::nccl_family
