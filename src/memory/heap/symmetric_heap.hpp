// Symmetric heap of one rank: blocks that all ranks map, in shared memory on the host and in device memory on
// devices. Small device blocks share a segment and have the same offset on every rank.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "memory/heap/heap_source.hpp"

namespace isthmus {

class symmetric_heap {
 public:
  enum class block_owner { program, backend };

  symmetric_heap();
  ~symmetric_heap();
  symmetric_heap(const symmetric_heap&) = delete;
  symmetric_heap& operator=(const symmetric_heap&) = delete;

  // Collective: every rank gets a block of `bytes`, or every rank throws. Peers that cannot be mapped (on
  // another machine, or on a device without peer access) are NULL in the block's `peers`. Returns nullptr if
  // bytes == 0. Blocks of backends are zero-filled and are not reported as leaked.
  void* allocate(bootstrap& control, const membership& ranks, std::uint64_t bytes,
                 block_owner owned_by = block_owner::program);

  // Local. Throws error (INVALID_ARGUMENT) if `pointer` is not the start of a live program block, or if
  // `id` is not the id of a live backend block. The memory of a small block is reused after every rank has
  // freed the block.
  void free(void* pointer);
  void free_backend_block(std::uint64_t id);

  // Releases all blocks. Returns the number of program blocks among them.
  std::size_t clear();

  bool empty() const noexcept { return m_count.load(std::memory_order_relaxed) == 0; }
  // Number of live program blocks, and their total size as requested.
  std::size_t blocks() const noexcept;
  std::uint64_t bytes() const noexcept;
  // Number of live program blocks in all heaps of the process, for isthmus_memory_live_blocks. block_table counts plain
  // device blocks.
  static std::uint64_t live_blocks() noexcept { return m_live_blocks.load(std::memory_order_relaxed); }

  // Finds the block that contains [pointer, pointer + bytes). `block` and `offset` can be nullptr.
  bool find(const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
            std::uint64_t* offset) const noexcept {
    return !empty() && find_block(pointer, bytes, block, offset);
  }

 private:
  struct shared_region;
  struct block_record;
  struct rank_report;
  struct proposal;
  struct range {  // contiguous and sorted, for fast lookup
    std::uintptr_t begin;
    std::uint64_t bytes;
  };

  bool find_block(const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
                  std::uint64_t* offset) const noexcept;
  void open_source(bootstrap& control, const membership& ranks);
  bool is_pooled(std::uint64_t bytes) const { return bytes <= m_granularity / 2; }
  proposal propose(std::uint64_t bytes, std::uint64_t segment_bytes);
  std::vector<rank_report> exchange(bootstrap& control, const proposal& own_proposal);
  std::shared_ptr<shared_region> share(bootstrap& control, const membership& ranks, proposal own_proposal,
                                       std::vector<rank_report> reports);
  std::shared_ptr<shared_region> map(const membership& ranks, const std::vector<rank_report>& reports);
  std::shared_ptr<shared_region> allocate_pooled(bootstrap& control, const membership& ranks,
                                                 std::uint64_t bytes, std::uint64_t* offset);
  void reclaim_freed_blocks(bootstrap& control, const std::vector<rank_report>& reports);
  void clear_on_all_ranks(bootstrap& control, void* own_block, std::uint64_t bytes);
  void* add(std::shared_ptr<shared_region> memory, std::uint64_t offset, std::uint64_t bytes,
            block_owner owned_by);
  void remove(std::size_t index);
  void warn_once(const std::string& text);

  static inline std::atomic<std::uint64_t> m_live_blocks{0};
  std::unique_ptr<heap_source> m_source;
  std::uint64_t m_granularity = 0;  // the maximum over all ranks
  std::vector<std::shared_ptr<shared_region>> m_pools;
  std::vector<std::unique_ptr<block_record>>
      m_freed_blocks;  // freed by this rank, but possibly not yet by all ranks
  std::set<std::string> m_warnings;
  std::uint64_t m_next_id = 1;
  std::atomic<std::size_t> m_count{0};
  std::vector<range> m_ranges;
  std::vector<std::unique_ptr<block_record>> m_blocks;  // in the order of m_ranges
};

}  // namespace isthmus
