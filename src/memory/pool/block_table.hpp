// Every live plain block of the process, by address: which provider made it, so that nothing guesses.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace isthmus {

class device_memory;

struct memory_block {
  std::uintptr_t begin;
  std::uint64_t bytes;
  device_memory* owner;
  std::size_t provider;  // its index in the owner's order
  bool is_pooled;
  bool is_growable = false;
};

class block_table {
 public:
  static block_table& instance();  // lives until the process ends

  void insert(const memory_block& block);

  // The live block that holds `pointer`.
  std::optional<memory_block> find(const void* pointer) const;

  // Takes out the block that starts at `pointer` and belongs to `device`. Throws error (INVALID_ARGUMENT)
  // that says what the pointer is instead; `function` stands in the message.
  memory_block remove(isthmus_device device, const void* pointer, const char* function);

  // The same look-up and errors; the block stays.
  memory_block lookup(isthmus_device device, const void* pointer, const char* function) const;

  struct totals {
    std::uint64_t blocks, bytes;
  };
  totals live() const;
  totals live_from(const device_memory* owner, std::size_t provider) const;

 private:
  struct freed_block {
    std::uintptr_t begin;
    std::uint64_t bytes;
    isthmus_device device;
  };
  using blocks = std::map<std::uintptr_t, memory_block>;
  blocks::const_iterator find_owned(isthmus_device device, const void* pointer, const char* function) const;
  blocks::const_iterator find_containing(std::uintptr_t address) const;
  [[noreturn]] void fail(const void* pointer, const char* function) const;

  mutable std::mutex m_mutex;
  blocks m_blocks;
  std::array<freed_block, 1024> m_freed{};  // the latest, to tell a second free from a foreign pointer
  std::size_t m_next_freed = 0;
};

}  // namespace isthmus
