// All live plain device blocks of the process by address, with the provider that allocated each one.
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
  std::size_t provider;  // index in the owner's provider order
  bool is_pooled;
  bool is_growable = false;
};

class block_table {
 public:
  static block_table& instance();  // never destroyed

  void insert(const memory_block& block);

  // Returns the live block that contains `pointer`.
  std::optional<memory_block> find(const void* pointer) const;

  // Removes and returns the block that starts at `pointer` on `device`. If there is none, throws error
  // (INVALID_ARGUMENT) that describes what the pointer refers to. `function` appears in the message.
  memory_block remove(isthmus_device device, const void* pointer, const char* function);

  // Same as remove, but the block stays in the table.
  memory_block lookup(isthmus_device device, const void* pointer, const char* function) const;

  struct totals {
    std::uint64_t blocks, bytes;
  };
  totals live_totals() const;
  totals live_totals(const device_memory* owner, std::size_t provider) const;

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
  std::array<freed_block, 1024> m_freed_blocks{};  // recent frees, to detect double frees
  std::size_t m_next_freed = 0;
};

}  // namespace isthmus
