// Algorithms without staging, for buffers that every rank can reach: mapped, because they lie in the symmetric
// heap or all ranks are threads of one process, or else through the kernel, which copies between processes.
#include <algorithm>

#include "backends/host/algorithms.hpp"
#include "base/error.hpp"

namespace isthmus::shm {
namespace {

// One of this rank's buffers: what the others are told, and how this rank reaches theirs in the same block.
struct buffer {
  buffer_location where{};
  isthmus_heap_block block{};
};

buffer locate(const node_group& group, const std::byte* pointer, std::uint64_t bytes) {
  buffer found;
  if (bytes == 0) return found;
  const auto& context = group.context();
  std::uint64_t offset = 0;
  if (!group.is_one_process() &&
      context.heap_find(context.runtime, pointer, bytes, &found.block, &offset) != 0 &&
      found.block.peers != nullptr) {
    found.where.block_id = found.block.id + 1;
    found.where.offset = offset;
  }
  if (found.where.block_id != 0 ? group.can_kernel_copy() : group.is_accessible_by_all(pointer))
    found.where.address = const_cast<std::byte*>(pointer);
  return found;
}

class direct {
 public:
  // Long enough that a call into the kernel costs little beside it, short enough for a second-level cache.
  static constexpr std::uint64_t fetched_bytes = 64 << 10;
  // Copied between two looks at poison.
  static constexpr std::uint64_t watched_bytes = 1 << 20;

  direct(node_group& group, workspace& work, const shape& s, store_mode shared)
      : m_group(group), m_work(work), m_shape(s), m_shared(shared), m_results(result_store_mode(group, s)) {}

  bool run(bool updates_in_place) {
    m_sequence = m_group.allocate_sequence_numbers(1);
    tell_places(updates_in_place);
    // every rank sees the same places, so all decide alike
    const bool reachable = all_reach_what_they_need();
    if (reachable) {
      move();
      m_group.poll_abort();  // what was read of a rank that gave up may be anything
    }
    streaming_fence();
    m_group.complete(m_sequence);
    // until then a peer may read or write this rank's buffers
    if (reachable) m_group.wait_until_all_complete(m_sequence);
    return reachable;
  }

 private:
  bool pushes() const { return m_shape.receiver != all_ranks && m_shape.reduce == nullptr; }         // gather
  bool shares_reduction() const { return m_shape.reduce != nullptr && m_shape.sends_same_block(); }  // (all)reduce

  void tell_places(bool updates_in_place) {
    if (!updates_in_place) {
      m_send = locate(m_group, m_shape.send_buf, m_shape.send_bytes());
      m_recv = locate(m_group, m_shape.recv_buf, m_shape.recv_bytes());
    }
    if (m_recv.where.address != nullptr || m_recv.where.block_id != 0)
      if (m_shape.is_receiver(m_group.rank()) && (pushes() || shares_reduction()))
        m_group.expose({m_shape.recv_buf, m_shape.recv_bytes(), m_recv.where.block_id != 0});
    m_group.reserve_slot(m_sequence);
    slot_header& own = m_group.slot(m_group.rank(), m_sequence);
    own.send = m_send.where;
    own.recv = m_recv.where;
    own.call_signature = call_signature();
    own.staged.store(m_sequence + 1, std::memory_order_release);
    for (int i = 1; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      m_group.wait_for(peer, m_group.slot(peer, m_sequence).staged, m_sequence);
      if (m_group.slot(peer, m_sequence).call_signature != own.call_signature) fail_signature_mismatch(peer);
    }
  }

  // Of what a rank computes where in another's buffer it reads and writes. Who differs in that would reach past
  // the buffer's end, so all compare it before any copies.
  std::uint64_t call_signature() const {
    std::uint64_t mixed = 14695981039346656037u;  // FNV-1a, by words
    const auto mix = [&](std::uint64_t word) { mixed = (mixed ^ word) * 1099511628211u; };
    mix(m_shape.count * m_shape.element_bytes);
    for (const int word : {m_shape.source, m_shape.receiver, m_shape.reduce != nullptr ? 1 : 0,
                           static_cast<int>(m_shape.send.shape), static_cast<int>(m_shape.recv.shape)})
      mix(static_cast<std::uint64_t>(word));
    for (const block_list* blocks : {&m_shape.send, &m_shape.recv})
      if (blocks->shape == extent::counts)
        for (int r = 0; r < m_group.size(); ++r) mix(blocks->counts[r] * m_shape.element_bytes);
    return mixed;
  }

  [[noreturn, gnu::cold]] void fail_signature_mismatch(int peer) const {
    const auto& context = m_group.context();
    const unsigned long long bytes = m_shape.count * m_shape.element_bytes;
    throw operation_failure{context.fail(context.runtime, ISTHMUS_ERROR_MISMATCH, 0, ISTHMUS_HERE,
                               "every rank must give the same collective, count, datatype and root",
                               "rank %d's call differs from that of rank %d, with %llu bytes a block, in "
                               "collective, bytes or root",
                               peer, m_group.rank(), bytes)};
  }

  // A rank reaches a heap block when one of its own buffers lies in the same block.
  bool all_map(const buffer_location& where) const {
    if (where.block_id == 0) return false;
    for (int r = 0; r < m_group.size(); ++r) {
      const slot_header& told = m_group.slot(r, m_sequence);
      if (told.send.block_id != where.block_id && told.recv.block_id != where.block_id) return false;
    }
    return true;
  }
  bool all_reach(const buffer_location& where) const { return where.address != nullptr || all_map(where); }

  bool all_reach_what_they_need() const {
    for (int r = 0; r < m_group.size(); ++r) {
      const slot_header& told = m_group.slot(r, m_sequence);
      const bool is_read = m_shape.is_read(r) && !pushes();
      const bool is_written = m_shape.is_receiver(r) && (pushes() || shares_reduction());
      if ((is_read && !all_reach(told.send)) || (is_written && !all_reach(told.recv))) return false;
    }
    return true;
  }

  reached reach(int owner, const buffer_location& where, const std::byte* own) const {
    if (owner == m_group.rank()) return {owner, const_cast<std::byte*>(own), true};
    if (!all_map(where)) return {owner, where.address, m_group.is_same_process(owner)};
    const isthmus_heap_block& block = where.block_id == m_send.where.block_id ? m_send.block : m_recv.block;
    return {owner, static_cast<std::byte*>(block.peers[owner]) + where.offset, true};
  }
  reached send_of(int rank) const { return reach(rank, m_group.slot(rank, m_sequence).send, m_shape.send_buf); }
  reached recv_of(int rank) const { return reach(rank, m_group.slot(rank, m_sequence).recv, m_shape.recv_buf); }

  void fetch(std::byte* to, const reached& from, std::uint64_t offset, std::uint64_t bytes) {
    if (from.is_mapped)
      copy_watchfully(to, from.begin + offset, bytes, m_results);
    else
      m_group.read_from(from.owner, to, from.begin + offset, bytes);
  }
  void put(const reached& to, std::uint64_t offset, const std::byte* from, std::uint64_t bytes) {
    if (to.is_mapped)  // what a peer will read may go past this core's cache, what this rank will read not
      copy_watchfully(to.begin + offset, from, bytes, to.owner == m_group.rank() ? m_results : m_shared);
    else
      m_group.write_to(to.owner, from, to.begin + offset, bytes);
  }
  void copy_watchfully(std::byte* to, const std::byte* from, std::uint64_t bytes, store_mode mode) {
    for (std::uint64_t at = 0; at < bytes; at += watched_bytes) {
      m_group.poll_abort();
      copy(to + at, from + at, std::min(watched_bytes, bytes - at), mode);
    }
  }

  void move() {
    if (pushes() || shares_reduction()) {
      const write_scope scope = m_group.begin_remote_writes();
      m_group.poll_abort();
      if (pushes())
        push();
      else
        reduce_slice();
    } else if (m_shape.reduce != nullptr)
      reduce_own_block();
    else
      pull();
  }

  void push() {
    const int me = m_group.rank();
    put(recv_of(m_shape.receiver), m_shape.recv_offset(me), m_shape.send_buf,
        m_shape.given_elements(me) * m_shape.element_bytes);
  }

  void pull() {
    const int me = m_group.rank();
    for (int i = 0; i < m_group.size(); ++i) {
      const int peer = (me + i) % m_group.size();
      const std::uint64_t bytes = m_shape.taken_elements(peer) * m_shape.element_bytes;
      if (m_shape.is_source(peer) && bytes > 0)
        fetch(m_shape.recv_buf + m_shape.recv_offset(peer), send_of(peer), m_shape.send_offset(me), bytes);
    }
  }

  void reduce_own_block() {
    const std::uint64_t bytes = m_shape.element_bytes, elements = m_shape.taken_elements(m_group.rank());
    const bool is_mapped = find_sources(m_shape.send_offset(m_group.rank()));
    const std::uint64_t block = is_mapped ? elements : fetched_bytes / bytes;
    for (std::uint64_t at = 0; at < elements; at += block)
      reduce_block(m_shape.recv_buf + at * bytes, at, std::min(block, elements - at));
  }

  // This rank reduces its slice of all vectors and writes the result to every taker. Slices are disjoint
  // and whole lines, so in place is no special case: nobody else touches this slice of any buffer.
  void reduce_slice() {
    const std::uint64_t bytes = m_shape.element_bytes, ranks = static_cast<std::uint64_t>(m_group.size());
    const std::uint64_t slice = round_up((m_shape.count + ranks - 1) / ranks, line_bytes / bytes);
    const std::uint64_t begin = std::min(m_shape.count, slice * static_cast<std::uint64_t>(m_group.rank()));
    const std::uint64_t end = std::min(m_shape.count, begin + slice);
    bool is_mapped = find_sources(0);
    m_work.takers.clear();
    for (int i = 0; i < m_group.size(); ++i) {
      const int peer = (m_group.rank() + i) % m_group.size();
      if (!m_shape.is_receiver(peer)) continue;
      m_work.takers.push_back(recv_of(peer));
      is_mapped &= m_work.takers.back().is_mapped;
    }
    const std::uint64_t block_bytes = is_mapped ? page_bytes : fetched_bytes, block = block_bytes / bytes;
    std::byte* result = scratch(block_bytes);
    for (std::uint64_t at = begin; at < end; at += block) {
      const std::uint64_t length = std::min(block, end - at);
      reduce_block(result, at, length);
      for (const reached& taker : m_work.takers) put(taker, at * bytes, result, length * bytes);
    }
  }

  // Where this rank's share of every contribution begins. True: all of them are mapped.
  bool find_sources(std::uint64_t offset) {
    bool is_mapped = true;
    m_work.contributions.clear();
    for (int r = 0; r < m_group.size(); ++r) {
      m_work.contributions.push_back(send_of(r));
      m_work.contributions.back().begin += offset;
      is_mapped &= m_work.contributions.back().is_mapped;
    }
    return is_mapped;
  }

  // Reduces `length` elements of all contributions, from element `at` on.
  void reduce_block(std::byte* to, std::uint64_t at, std::uint64_t length) {
    const std::uint64_t bytes = m_shape.element_bytes;
    for (std::size_t r = 0; r < m_work.contributions.size(); ++r) {
      const reached& from = m_work.contributions[r];
      m_work.sources[r] = from.begin + at * bytes;
      if (from.is_mapped) continue;
      std::byte* fetched = scratch(fetched_bytes) + (r + 1) * fetched_bytes;
      m_group.read_from(from.owner, fetched, from.begin + at * bytes, length * bytes);
      m_work.sources[r] = fetched;
    }
    m_shape.reduce(to, m_work.sources.data(), m_group.size(), length);
  }

  // Memory of this rank: a block of results and, where the kernel copies, one of each contribution.
  std::byte* scratch(std::uint64_t block_bytes) {
    const std::uint64_t blocks = block_bytes == fetched_bytes ? m_work.contributions.size() + 1 : 1;
    const std::uint64_t wanted = blocks * block_bytes + line_bytes;
    if (m_work.bytes.size() < wanted) m_work.bytes.resize(wanted);
    const auto begin = reinterpret_cast<std::uintptr_t>(m_work.bytes.data());
    return m_work.bytes.data() + (round_up(begin, line_bytes) - begin);
  }

  node_group& m_group;
  workspace& m_work;
  const shape& m_shape;
  store_mode m_shared, m_results;
  std::uint64_t m_sequence = 0;
  buffer m_send, m_recv;
};

}  // namespace

bool run_direct(node_group& group, workspace& work, const shape& s, store_mode shared, bool updates_in_place) {
  return direct(group, work, s, shared).run(updates_in_place);
}

}  // namespace isthmus::shm
