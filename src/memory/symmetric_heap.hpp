// The symmetric heap of one rank on the host platform: shared memory that every rank of the machine maps.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "runtime/membership.hpp"

namespace isthmus {

class shared_segment;

class symmetric_heap {
 public:
  symmetric_heap();
  ~symmetric_heap();
  symmetric_heap(const symmetric_heap&) = delete;
  symmetric_heap& operator=(const symmetric_heap&) = delete;

  // Collective: every rank gets a block of `bytes`, or every rank throws. Peers that cannot be mapped
  // (another machine) are NULL in the block's `peers`. bytes == 0 gives nullptr.
  void* allocate(bootstrap& ranks, const membership& who, std::uint64_t bytes);

  // Local. Throws error (INVALID_ARGUMENT) for a pointer that is not the start of a live block.
  void free(void* pointer);

  // Releases what is left; returns how many blocks that were.
  std::size_t clear();

  bool empty() const noexcept { return m_count.load(std::memory_order_relaxed) == 0; }
  std::size_t blocks() const noexcept { return m_blocks.size(); }
  std::uint64_t bytes() const noexcept;

  // The block that holds [pointer, pointer + bytes); `block` and `offset` may be nullptr.
  bool find(const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
            std::uint64_t* offset) const noexcept {
    return !empty() && find_block(pointer, bytes, block, offset);
  }

 private:
  struct block;
  bool find_block(const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
                  std::uint64_t* offset) const noexcept;

  std::uint64_t m_next_id = 1;
  std::atomic<std::size_t> m_count{0};
  std::vector<std::unique_ptr<block>> m_blocks;  // by address
};

}  // namespace isthmus
