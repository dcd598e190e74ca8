// One-phase algorithm: contributors stage, takers copy or reduce what they find.
#include <algorithm>

#include "backend/host/algorithms.hpp"

namespace isthmus::host {
namespace {

class one_shot {
 public:
  one_shot(team& team, workspace& work, const shape& s, store shared)
      : m_team(team),
        m_work(work),
        m_shape(s),
        m_me(team.rank()),
        m_stride(stride(team, s)),
        m_chunk_elements(m_stride / s.element_bytes),
        m_shared(shared),
        m_results(store_for_results(team, s)) {}

  // Chunk k is staged in step k and taken `distance` steps later. In long calls peers have staged it by then,
  // and within a step the writes of one chunk overlap with the reads of another; short ones end sooner without.
  void run() {
    const std::uint64_t chunks = (m_shape.count + m_chunk_elements - 1) / m_chunk_elements;
    const bool is_long = chunks > team::lookahead;
    const std::uint64_t distance = is_long ? team::lookahead / 2 : 1;
    const std::uint64_t first = m_team.take_tickets(chunks);
    const bool stages = m_shape.contributes(m_me) && m_team.size() > 1, takes = m_shape.takes(m_me);
    for (std::uint64_t step = 0; step < chunks + distance; ++step) {
      const bool is_staged = stages && step < chunks, is_due = step >= distance, is_taken = takes && is_due;
      const std::uint64_t ticket = first + step, due = step - distance;
      if (is_staged) prepare_to_stage(step, ticket);
      if (is_taken) prepare_to_take(due, ticket - distance);
      const std::uint64_t block = is_long && is_staged && is_taken ? block_bytes : m_stride;
      for (std::uint64_t at = 0; at < m_stride; at += block) {
        if (is_staged) copy_block(m_work.staged, at, block, m_shared);
        if (!is_taken) continue;
        if (m_shape.reduce == nullptr)
          copy_block(m_work.taken, at, block, m_results);
        else
          reduce_block(due, at, block);
      }
      if (is_staged) {
        if (m_shared == store::streaming) streaming_fence();
        m_team.slot(m_me, ticket).staged.store(ticket + 1, std::memory_order_release);
      }
      if (is_due) m_team.complete(ticket - distance);
    }
    if (m_results == store::streaming) streaming_fence();
  }

 private:
  static constexpr std::uint64_t block_bytes = 512;

  // Bytes of one block in one chunk; where contributors have one for each rank, these share a slot.
  static std::uint64_t stride(const team& team, const shape& s) {
    const std::uint64_t slot = team.sizes().slot_bytes;
    return s.per_destination ? slot / static_cast<std::uint64_t>(team.size()) / line_bytes * line_bytes : slot;
  }

  std::uint64_t chunk_begin(std::uint64_t k) const { return k * m_chunk_elements * m_shape.element_bytes; }
  // Bytes of chunk k in a block of that many elements.
  std::uint64_t chunk_bytes(std::uint64_t k, std::uint64_t block_elements) const {
    const std::uint64_t begin = k * m_chunk_elements;
    if (begin >= block_elements) return 0;
    return std::min(m_chunk_elements, block_elements - begin) * m_shape.element_bytes;
  }

  void prepare_to_stage(std::uint64_t k, std::uint64_t ticket) {
    m_team.reserve(ticket);
    std::byte* to = m_team.data(m_me, ticket);
    const std::byte* from = m_shape.send + chunk_begin(k);
    const std::uint64_t bytes = chunk_bytes(k, m_shape.block_elements(m_me));
    m_work.staged.clear();
    if (!m_shape.per_destination) return m_work.staged.push_back({to, from, bytes});
    for (int i = 1; i < m_team.size(); ++i) {
      const int peer = (m_me + i) % m_team.size();
      if (m_shape.takes(peer))
        m_work.staged.push_back(
            {to + static_cast<std::uint64_t>(peer) * m_stride, from + m_shape.send_offset(peer), bytes});
    }
  }

  // Waits for the contributors and notes where their pieces lie: for copies, or as sources of the reduction.
  void prepare_to_take(std::uint64_t k, std::uint64_t ticket) {
    const std::uint64_t begin = chunk_begin(k);
    const std::uint64_t skip = m_shape.per_destination ? static_cast<std::uint64_t>(m_me) * m_stride : 0;
    m_work.taken.clear();
    for (int i = 1; i <= m_team.size(); ++i) {  // this rank last
      const int peer = (m_me + i) % m_team.size();
      if (!m_shape.contributes(peer)) continue;
      const std::byte* from = m_shape.send + m_shape.send_offset(m_me) + begin;
      if (peer != m_me) {
        m_team.wait_for(peer, m_team.slot(peer, ticket).staged, ticket);
        from = m_team.data(peer, ticket) + skip;
      }
      m_work.sources[static_cast<std::size_t>(peer)] = from;
      std::byte* to = m_shape.recv + m_shape.recv_offset(peer) + begin;
      if (to != from) m_work.taken.push_back({to, from, chunk_bytes(k, m_shape.block_elements(peer))});
    }
  }

  void copy_block(const std::vector<piece>& pieces, std::uint64_t at, std::uint64_t block, store how) {
    m_work.pieces.clear();
    for (const piece& each : pieces)
      if (at < each.bytes)
        m_work.pieces.push_back({each.to + at, each.from + at, std::min(block, each.bytes - at)});
    copy_together(m_work.pieces, how);
  }

  void reduce_block(std::uint64_t k, std::uint64_t at, std::uint64_t block) {
    const std::uint64_t bytes = chunk_bytes(k, m_shape.count);
    if (at >= bytes) return;
    m_work.block_sources.clear();
    for (const void* source : m_work.sources)
      m_work.block_sources.push_back(static_cast<const std::byte*>(source) + at);
    m_shape.reduce(m_shape.recv + chunk_begin(k) + at, m_work.block_sources.data(), m_team.size(),
                   std::min(block, bytes - at) / m_shape.element_bytes);
  }

  team& m_team;
  workspace& m_work;
  const shape& m_shape;
  int m_me;
  std::uint64_t m_stride, m_chunk_elements;
  store m_shared, m_results;
};

}  // namespace

void run_one_shot(team& team, workspace& work, const shape& s, store shared) {
  one_shot(team, work, s, shared).run();
}

}  // namespace isthmus::host
