// Registers symmetric heap blocks with the native library, which can then use them without a copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/nccl_family/collectives.hpp"

namespace isthmus::nccl_family {

// The option `backend.<name>.registration`.
enum class registration_mode {
  off,
  buffers,  // default: each rank registers its own block
  windows   // symmetric windows: all ranks must use equal offsets in every collective
};

// Returns nullopt for an unknown name, and `buffers` for NULL.
inline std::optional<registration_mode> parse_registration_mode(const char* text) {
  const std::string_view name = text != nullptr ? text : "buffers";
  if (name == "off") return registration_mode::off;
  if (name == "buffers") return registration_mode::buffers;
  if (name == "windows") return registration_mode::windows;
  return std::nullopt;
}

class registered_blocks {
 public:
  // `native` must outlive this object.
  registered_blocks(const native_functions& native, registration_mode mode) : m_native(&native), m_mode(mode) {}

  registration_mode mode() const { return m_mode; }
  // Returns the name of a required function that the library lacks, or "".
  std::string missing_function() const;
  // Registers a block and returns the library's result. Registering a window is collective and can block.
  int add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes);
  // Deregisters the block if it is registered. Local.
  void remove(native_comm comm, std::uint64_t id);
  void clear(native_comm comm);
  const char* register_function() const {
    return m_mode == registration_mode::windows ? "CommWindowRegister" : "CommRegister";
  }

 private:
  struct registered_block {
    std::uint64_t id;
    void* handle;
  };
  void release(native_comm comm, const registered_block& block) const;

  const native_functions* m_native;
  registration_mode m_mode;
  std::vector<registered_block> m_entries;
};

inline std::string registered_blocks::missing_function() const {
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

inline int registered_blocks::add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes) {
  void* handle = nullptr;
  const int result = m_mode == registration_mode::windows
                         ? m_native->window_register(comm, buffer, bytes, &handle, window_symmetric)
                         : m_native->comm_register(comm, buffer, bytes, &handle);
  if (result == native_success) m_entries.push_back({id, handle});
  return result;
}

inline void registered_blocks::release(native_comm comm, const registered_block& block) const {
  if (block.handle == nullptr) return;  // the library did not need to register this block
  if (m_mode == registration_mode::windows)
    m_native->window_deregister(comm, block.handle);
  else
    m_native->comm_deregister(comm, block.handle);
}

inline void registered_blocks::remove(native_comm comm, std::uint64_t id) {
  const auto position = std::find_if(m_entries.begin(), m_entries.end(),
                                     [id](const registered_block& block) { return block.id == id; });
  if (position == m_entries.end()) return;
  release(comm, *position);
  m_entries.erase(position);
}

inline void registered_blocks::clear(native_comm comm) {
  for (const registered_block& block : m_entries) release(comm, block);
  m_entries.clear();
}

}  // namespace isthmus::nccl_family
