// Blocks of the symmetric heap that the library knows and may use in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/nccl_family/native_api.hpp"

namespace isthmus::nccl_family {

// The option `backend.<name>.registration`.
enum class registration_mode {
  off,
  buffers,  // each rank tells the library of its block: the default
  windows   // symmetric windows: the program promises equal offsets on all ranks in every collective
};

// Nothing for a text that is none of them; `buffers` for NULL.
std::optional<registration_mode> parse_registration_mode(const char* text);

class registered_blocks {
 public:
  // `native` outlives it.
  registered_blocks(const native_functions& native, registration_mode mode) : m_native(&native), m_mode(mode) {}

  registration_mode mode() const { return m_mode; }
  // "" or the functions that the library lacks for it.
  std::string missing_function() const;
  // Registers; a window is made by all ranks together and may block. Returns the library's result.
  int add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes);
  // Undoes it, if it was done. Local.
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

}  // namespace isthmus::xccl
