// Offsets of blocks inside one piece of memory. The same calls give the same offsets, which is
// what keeps the symmetric heap of all ranks alike.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace isthmus {

class offset_allocator {
 public:
  explicit offset_allocator(std::uint64_t bytes) { m_free[0] = bytes; }

  // The lowest free offset that fits; nothing when there is none. Offsets are multiples of `alignment`.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes);
  // Gives a range back; neighbours join.
  void release(std::uint64_t offset);
  bool empty() const { return m_allocated.empty(); }

  static constexpr std::uint64_t alignment = 4096;  // what NCCL wants of a window

 private:
  std::map<std::uint64_t, std::uint64_t> m_free, m_allocated;  // offset -> bytes
};

}  // namespace isthmus
