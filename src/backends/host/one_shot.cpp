// One-phase algorithm: contributors stage, takers copy or reduce what they find.
#include <algorithm>

#include "backends/host/algorithms.hpp"

namespace isthmus::shm {
namespace {

class one_shot {
 public:
  one_shot(node_group& group, workspace& work, const shape& s, store_mode shared, readers staged_for)
      : m_group(group),
        m_work(work),
        m_shape(s),
        m_me(group.rank()),
        m_is_shared(s.sends_same_block() && staged_for == readers::together),
        m_chunk_elements(chunk_bytes(group, s, m_is_shared) / s.element_bytes),
        m_shared(shared),
        m_results(result_store_mode(group, s)) {}

  // Chunk k is staged in step k and taken in the next one: by then the peers have staged it, too.
  void run() {
    const std::uint64_t chunks = (m_shape.count + m_chunk_elements - 1) / m_chunk_elements;
    const std::uint64_t first = m_group.allocate_sequence_numbers(chunks);
    const bool stages = m_shape.has_takers(), takes = m_shape.is_receiver(m_me);
    for (std::uint64_t k = 0; k <= chunks; ++k) {
      if (stages && k < chunks) stage(k, first + k);
      if (k == 0) continue;
      if (takes) take(k - 1, first + k - 1);
      m_group.complete(first + k - 1);
    }
    if (m_results == store_mode::streaming) streaming_fence();
  }

 private:
  // What a slot holds of one block; where each reader has one of its own, these share a slot.
  static std::uint64_t chunk_bytes(const node_group& group, const shape& s, bool is_shared) {
    if (!is_shared) return group.sizes().slot_block_bytes(group.size());
    if (s.source == all_ranks) return group.sizes().slot_bytes;
    // a root has nothing to read meanwhile, so short vectors are cut, too: the others read what it goes on
    // writing
    constexpr std::uint64_t least = 8 << 10;
    const std::uint64_t bytes = s.count * s.element_bytes;
    return std::min(group.sizes().slot_bytes, std::max(least, round_up(bytes / 4, page_bytes)));
  }

  std::uint64_t chunk_begin(std::uint64_t k) const { return k * m_chunk_elements * m_shape.element_bytes; }
  // Bytes of chunk k in a block of that many elements.
  std::uint64_t chunk_bytes(std::uint64_t k, std::uint64_t block_elements) const {
    const std::uint64_t begin = k * m_chunk_elements;
    if (begin >= block_elements) return 0;
    return std::min(m_chunk_elements, block_elements - begin) * m_shape.element_bytes;
  }

  void stage(std::uint64_t k, std::uint64_t sequence) {
    m_group.reserve_slot(sequence);
    const std::byte* from = m_shape.send_buf + chunk_begin(k);
    m_work.pieces.clear();
    if (!m_is_shared)
      for (int i = 1; i < m_group.size(); ++i) {
        const int peer = (m_me + i) % m_group.size();
        if (m_shape.is_receiver(peer))
          m_work.pieces.push_back({m_group.data_for(peer, m_me, sequence), from + m_shape.send_offset(peer),
                                   chunk_bytes(k, m_shape.given_elements(peer))});
      }
    else
      m_work.pieces.push_back(
          {m_group.data(m_me, sequence), from, chunk_bytes(k, m_shape.given_elements(m_me))});
    copy_staged(m_group, m_work.pieces, m_shared);
    if (m_shared == store_mode::streaming) streaming_fence();
    m_group.slot(m_me, sequence).staged.store(sequence + 1, std::memory_order_release);
  }

  // Waits for the contributors, and copies or reduces their pieces from where these lie.
  void take(std::uint64_t k, std::uint64_t sequence) {
    const std::uint64_t begin = chunk_begin(k);
    m_work.pieces.clear();
    for (int i = 1; i <= m_group.size(); ++i) {  // this rank last
      const int peer = (m_me + i) % m_group.size();
      if (!m_shape.is_source(peer)) continue;
      const std::byte* from = m_shape.send_buf + m_shape.send_offset(m_me) + begin;
      if (peer != m_me) {
        m_group.wait_for(peer, m_group.slot(peer, sequence).staged, sequence);
        from = m_is_shared ? m_group.data(peer, sequence) : m_group.data_for(m_me, peer, sequence);
      }
      m_work.sources[static_cast<std::size_t>(peer)] = from;
      std::byte* to = m_shape.recv_buf + m_shape.recv_offset(peer) + begin;
      if (to != from) m_work.pieces.push_back({to, from, chunk_bytes(k, m_shape.taken_elements(peer))});
    }
    if (m_shape.reduce != nullptr)
      return reduce(m_shape.recv_buf + begin, chunk_bytes(k, m_shape.taken_elements(m_me)));
    if (!m_is_shared) return copy_interleaved(m_work.pieces, m_results);
    // what all ranks read comes sooner piece after piece (docs/notes)
    for (const copy_range& each : m_work.pieces) copy(each.to, each.from, each.bytes, m_results);
  }

  // Reduces what the sources hold; past the cache block by block, which are in the first-level cache in
  // between.
  void reduce(std::byte* to, std::uint64_t bytes) {
    const std::uint64_t elements = bytes / m_shape.element_bytes;
    if (m_results == store_mode::cached) return m_shape.reduce(to, m_work.sources.data(), m_group.size(), elements);
    constexpr std::uint64_t block_bytes = 8 << 10;
    alignas(line_bytes) std::byte block[block_bytes];
    for (std::uint64_t at = 0; at < bytes; at += block_bytes) {
      const std::uint64_t length = std::min(block_bytes, bytes - at);
      m_shape.reduce(block, m_work.sources.data(), m_group.size(), length / m_shape.element_bytes);
      copy(to + at, block, length, m_results);
      for (const void*& source : m_work.sources) source = static_cast<const std::byte*>(source) + length;
    }
  }

  node_group& m_group;
  workspace& m_work;
  const shape& m_shape;
  int m_me;
  bool m_is_shared;  // one piece of staged memory is read by all
  std::uint64_t m_chunk_elements;
  store_mode m_shared, m_results;
};

}  // namespace

void run_one_shot(node_group& group, workspace& work, const shape& s, store_mode shared, readers staged_for) {
  one_shot(group, work, s, shared, staged_for).run();
}

}  // namespace isthmus::shm
