// Number of live program blocks in all symmetric heaps of the process, for isthmus_memory_live_blocks.
// block_table counts plain device blocks.
#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus {

class live_heap_blocks {
 public:
  static void add() { m_count.fetch_add(1, std::memory_order_relaxed); }
  static void remove(std::uint64_t blocks) { m_count.fetch_sub(blocks, std::memory_order_relaxed); }
  static std::uint64_t count() { return m_count.load(std::memory_order_relaxed); }

 private:
  static inline std::atomic<std::uint64_t> m_count{0};
};

}  // namespace isthmus
