// One-phase algorithm: sources stage their data, and receivers copy or reduce it.
#include <algorithm>

#include "backends/shm/algorithms.hpp"

namespace isthmus::shm {
namespace {

class one_shot {
 public:
  one_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
           staging_layout layout, staged_receivers receivers)
      : m_group(group),
        m_work(work),
        m_shape(shape),
        m_rank(group.rank()),
        m_receivers(receivers),
        m_is_shared(shape.sends_same_block() && layout == staging_layout::shared),
        m_chunk_elements(chunk_bytes(group, shape, m_is_shared) / shape.element_bytes),
        m_staging_mode(staging_mode),
        m_result_mode(result_store_mode(group, shape)) {}

  // Chunk k is staged in step k and received in step k + 1, when peers have also staged theirs.
  void run() {
    const std::uint64_t chunks = (m_shape.count + m_chunk_elements - 1) / m_chunk_elements;
    const std::uint64_t first = m_group.allocate_sequence_numbers(chunks, m_shape.receiver);
    const bool is_source = m_shape.has_receivers(), is_receiver = receives(m_rank);
    for (std::uint64_t k = 0; k <= chunks; ++k) {
      if (is_source && k < chunks) stage_chunk(k, first + k);
      if (k == 0) continue;
      if (is_receiver) receive_chunk(k - 1, first + k - 1);
      m_group.complete(first + k - 1);
    }
    m_group.refresh_completed(first + chunks - 1);
    if (m_result_mode == store_mode::streaming) streaming_fence();
  }

 private:
  bool receives(int rank) const {
    return m_shape.is_receiver(rank) && is_staged(m_receivers, m_shape.source, rank, m_group.size());
  }
  // Returns the number of bytes of one block in a slot. If each reader has its own block, the blocks
  // share the slot.
  static std::uint64_t chunk_bytes(const node_group& group, const collective_shape& shape, bool is_shared) {
    if (!is_shared) return group.sizes().slot_block_bytes(group.size());
    if (shape.source == all_ranks) return group.sizes().slot_bytes;
    // The root reads nothing, so short vectors are also split: peers read one chunk while the root
    // writes the next.
    constexpr std::uint64_t min_bytes = 8 << 10;
    const std::uint64_t bytes = shape.count * shape.element_bytes;
    return std::min(group.sizes().slot_bytes, std::max(min_bytes, round_up(bytes / 4, page_bytes)));
  }

  std::uint64_t chunk_begin(std::uint64_t k) const { return k * m_chunk_elements * m_shape.element_bytes; }
  // Returns the number of bytes of chunk k in a block of `block_elements` elements.
  std::uint64_t chunk_bytes(std::uint64_t k, std::uint64_t block_elements) const {
    const std::uint64_t begin = k * m_chunk_elements;
    if (begin >= block_elements) return 0;
    return std::min(m_chunk_elements, block_elements - begin) * m_shape.element_bytes;
  }

  void stage_chunk(std::uint64_t k, std::uint64_t sequence) {
    m_group.reserve_slot(sequence);
    const std::byte* from = m_shape.send_buf + chunk_begin(k);
    m_work.ranges.clear();
    if (!m_is_shared)
      for (int i = 1; i < m_group.size(); ++i) {
        const int peer = (m_rank + i) % m_group.size();
        if (receives(peer))
          m_work.ranges.push_back({m_group.data_for(peer, m_rank, sequence), from + m_shape.send_offset(peer),
                                   chunk_bytes(k, m_shape.send_elements(peer))});
      }
    else
      m_work.ranges.push_back(
          {m_group.data(m_rank, sequence), from, chunk_bytes(k, m_shape.send_elements(m_rank))});
    copy_staged(m_group, m_work.ranges, m_staging_mode);
    if (m_staging_mode == store_mode::streaming) streaming_fence();
    m_group.set_flag(m_group.slot(m_rank, sequence).staged, sequence);
  }

  // Waits for the sources, and copies or reduces their staged chunks.
  void receive_chunk(std::uint64_t k, std::uint64_t sequence) {
    const std::uint64_t begin = chunk_begin(k);
    m_work.ranges.clear();
    if (m_shape.receiver != all_ranks && m_shape.source == all_ranks) prefetch_flags(sequence);
    for (int i = 1; i <= m_group.size(); ++i) {  // this rank comes last
      const int peer = (m_rank + i) % m_group.size();
      if (!m_shape.is_source(peer)) continue;
      const std::byte* from = m_shape.send_buf + m_shape.send_offset(m_rank) + begin;
      if (peer != m_rank) {
        m_group.wait_for(peer, m_group.slot(peer, sequence).staged, sequence);
        from = m_is_shared ? m_group.data(peer, sequence) : m_group.data_for(m_rank, peer, sequence);
      }
      m_work.sources[static_cast<std::size_t>(peer)] = from;
      std::byte* to = m_shape.recv_buf + m_shape.recv_offset(peer) + begin;
      if (to != from) m_work.ranges.push_back({to, from, chunk_bytes(k, m_shape.recv_elements(peer))});
    }
    if (m_shape.reduce != nullptr)
      return reduce(m_shape.recv_buf + begin, chunk_bytes(k, m_shape.recv_elements(m_rank)));
    if (!m_is_shared) return copy_interleaved(m_work.ranges, m_result_mode);
    // data that all ranks read is copied faster one range after the other
    for (const copy_range& each : m_work.ranges) copy(each.destination, each.source, each.bytes, m_result_mode);
  }

  // A call with one receiver is limited by that receiver, so the cache misses of the flags overlap. A prefetch of a flag
  // that is not set yet takes the line away from its owner. Once one peer has staged, the others usually have also.
  void prefetch_flags(std::uint64_t sequence) {
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_rank + i) % m_group.size();
      const flag& staged = m_group.slot(peer, sequence).staged;
      if (i == 1)
        m_group.wait_for(peer, staged, sequence);
      else
        __builtin_prefetch(&staged);
    }
  }

  // Reduces the contributions. With streaming stores, works in blocks that stay in the L1 cache between the
  // reduction and the copy.
  void reduce(std::byte* to, std::uint64_t bytes) {
    const std::uint64_t elements = bytes / m_shape.element_bytes;
    if (m_result_mode == store_mode::cached)
      return m_shape.reduce(to, m_work.sources.data(), m_group.size(), elements);
    constexpr std::uint64_t block_bytes = 8 << 10;
    alignas(line_bytes) std::byte block[block_bytes];
    for (std::uint64_t position = 0; position < bytes; position += block_bytes) {
      const std::uint64_t length = std::min(block_bytes, bytes - position);
      m_shape.reduce(block, m_work.sources.data(), m_group.size(), length / m_shape.element_bytes);
      copy(to + position, block, length, m_result_mode);
      for (const void*& source : m_work.sources) source = static_cast<const std::byte*>(source) + length;
    }
  }

  node_group& m_group;
  workspace& m_work;
  const collective_shape& m_shape;
  int m_rank;
  staged_receivers m_receivers;
  bool m_is_shared;  // all ranks read the same staged block
  std::uint64_t m_chunk_elements;
  store_mode m_staging_mode, m_result_mode;
};

}  // namespace

void run_one_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                  staging_layout layout, staged_receivers receivers) {
  one_shot(group, work, shape, staging_mode, layout, receivers).run();
}

}  // namespace isthmus::shm
