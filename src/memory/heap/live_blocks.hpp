// Counts the blocks of symmetric heaps that their callers have to free, over the whole process, for
// isthmus_memory_live_blocks. Plain blocks are counted by their table.
#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus {

class live_blocks {
 public:
  static void add_to_heaps() { m_of_heaps.fetch_add(1, std::memory_order_relaxed); }
  static void remove_from_heaps(std::uint64_t blocks) {
    m_of_heaps.fetch_sub(blocks, std::memory_order_relaxed);
  }
  static std::uint64_t of_heaps() { return m_of_heaps.load(std::memory_order_relaxed); }

 private:
  static inline std::atomic<std::uint64_t> m_of_heaps{0};
};

}  // namespace isthmus
