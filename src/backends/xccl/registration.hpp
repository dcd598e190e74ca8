// Blocks of the symmetric heap that the library knows and may use in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/vendor/native_api.hpp"

namespace isthmus::xccl {

// The option `backend.<name>.registration`.
enum class registration {
  off,
  buffers,  // each rank tells the library of its block: the default
  windows   // symmetric windows: the program promises equal offsets on all ranks in every collective
};

// Nothing for a text that is none of them; `buffers` for NULL.
std::optional<registration> registration_of(const char* text);

class registered_blocks {
 public:
  // `native` outlives it.
  registered_blocks(const native_functions& native, registration how) : m_native(&native), m_how(how) {}

  registration how() const { return m_how; }
  // "" or the functions that the library lacks for it.
  std::string lacking() const;
  // Registers; a window is made by all ranks together and may block. Returns the library's result.
  int add(native_comm comm, std::uint64_t id, void* buffer, std::size_t bytes);
  // Undoes it, if it was done. Local.
  void remove(native_comm comm, std::uint64_t id);
  void clear(native_comm comm);
  const char* function() const {
    return m_how == registration::windows ? "CommWindowRegister" : "CommRegister";
  }

 private:
  struct entry {
    std::uint64_t id;
    void* handle;
  };
  void release(native_comm comm, const entry& which) const;

  const native_functions* m_native;
  registration m_how;
  std::vector<entry> m_entries;
};

}  // namespace isthmus::xccl
