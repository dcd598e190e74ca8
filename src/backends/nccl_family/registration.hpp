// Registers symmetric heap blocks with the native library, which can then use them without a copy.
#pragma once

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
std::optional<registration_mode> parse_registration_mode(const char* text);

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

}  // namespace isthmus::nccl_family
