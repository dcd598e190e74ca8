// Allocator for offsets within one segment. Deterministic: equal sequences of calls return equal offsets, which
// keeps the symmetric heaps of all ranks identical.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace isthmus {

class offset_allocator {
 public:
  explicit offset_allocator(std::uint64_t bytes) { m_free_ranges[0] = bytes; }

  // Allocates the lowest free range that fits. Returns nullopt if there is none. Offsets are
  // multiples of `alignment`.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes);
  // Releases a range and merges it with adjacent free ranges.
  void release(std::uint64_t offset);
  bool empty() const { return m_allocated_ranges.empty(); }

  static constexpr std::uint64_t alignment = 4096;  // required by NCCL windows

 private:
  std::map<std::uint64_t, std::uint64_t> m_free_ranges, m_allocated_ranges;  // offset -> bytes
};

}  // namespace isthmus
