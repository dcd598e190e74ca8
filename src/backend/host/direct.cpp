// Algorithms without staging, for buffers that every rank can reach: in the symmetric heap, or anywhere
// when all ranks are threads of one process.
#include <algorithm>

#include "backend/host/algorithms.hpp"

namespace isthmus::host {
namespace {

constexpr std::uint64_t region_private = 0;
constexpr std::uint64_t region_own_process = ~std::uint64_t{0};

// One of this rank's buffers: what the others are told, and how this rank reaches theirs in the same block.
struct buffer {
  place where{region_private, 0};
  isthmus_heap_block block{};
};

buffer locate(const team& team, const void* pointer, std::uint64_t bytes) {
  buffer found;
  if (bytes == 0) return found;
  const auto& context = team.context();
  std::uint64_t offset = 0;
  if (team.is_one_process())
    found.where = {region_own_process, reinterpret_cast<std::uintptr_t>(pointer)};
  else if (context.heap_find(context.runtime, pointer, bytes, &found.block, &offset) != 0 &&
           found.block.peers != nullptr)
    found.where = {found.block.id + 1, offset};
  return found;
}

class direct {
 public:
  direct(team& team, workspace& work, const shape& s, store shared)
      : m_team(team), m_work(work), m_shape(s), m_shared(shared), m_results(store_for_results(team, s)) {}

  bool run(bool updates_in_place) {
    m_ticket = m_team.take_tickets(1);
    tell_places(updates_in_place);
    // every rank sees the same places, so all decide alike
    const bool reachable = all_reach_what_they_need();
    if (reachable) move();
    streaming_fence();
    m_team.complete(m_ticket);
    // until then a peer may read or write this rank's buffers
    if (reachable) m_team.wait_until_all_complete(m_ticket);
    return reachable;
  }

 private:
  bool pushes() const { return m_shape.sink != all_ranks && m_shape.reduce == nullptr; }  // gather
  bool shares_reduction() const {
    return m_shape.reduce != nullptr && !m_shape.per_destination;
  }  // (all)reduce

  void tell_places(bool updates_in_place) {
    if (!updates_in_place) {
      m_send = locate(m_team, m_shape.send, m_shape.send_elements * m_shape.element_bytes);
      m_recv = locate(m_team, m_shape.recv, m_shape.recv_bytes());
    }
    m_team.reserve(m_ticket);
    slot_header& own = m_team.slot(m_team.rank(), m_ticket);
    own.send = m_send.where;
    own.recv = m_recv.where;
    own.staged.store(m_ticket + 1, std::memory_order_release);
    for (int i = 1; i < m_team.size(); ++i) {
      const int peer = (m_team.rank() + i) % m_team.size();
      m_team.wait_for(peer, m_team.slot(peer, m_ticket).staged, m_ticket);
    }
  }

  // A rank reaches a heap block when one of its own buffers lies in the same block.
  bool all_reach(const place& where) const {
    if (where.region == region_private) return false;
    if (where.region == region_own_process) return true;
    for (int r = 0; r < m_team.size(); ++r) {
      const slot_header& told = m_team.slot(r, m_ticket);
      if (told.send.region != where.region && told.recv.region != where.region) return false;
    }
    return true;
  }

  bool all_reach_what_they_need() const {
    for (int r = 0; r < m_team.size(); ++r) {
      const slot_header& told = m_team.slot(r, m_ticket);
      const bool is_read = m_shape.contributes(r) && !pushes() && m_shape.block_elements(r) > 0;
      const bool is_written = m_shape.takes(r) && (pushes() || shares_reduction());
      if ((is_read && !all_reach(told.send)) || (is_written && !all_reach(told.recv))) return false;
    }
    return true;
  }

  std::byte* address(int owner, const place& where) const {
    if (where.region == region_own_process) return reinterpret_cast<std::byte*>(where.offset);
    const isthmus_heap_block& block = where.region == m_send.where.region ? m_send.block : m_recv.block;
    return static_cast<std::byte*>(block.peers[owner]) + where.offset;
  }
  std::byte* send_of(int rank) const {
    return rank == m_team.rank() ? const_cast<std::byte*>(m_shape.send)
                                 : address(rank, m_team.slot(rank, m_ticket).send);
  }
  std::byte* recv_of(int rank) const {
    return rank == m_team.rank() ? m_shape.recv : address(rank, m_team.slot(rank, m_ticket).recv);
  }

  void move() {
    if (pushes())
      push();
    else if (shares_reduction())
      reduce_slice();
    else if (m_shape.reduce != nullptr)
      reduce_own_block();
    else
      pull();
  }

  void push() {
    const int me = m_team.rank();
    copy(recv_of(m_shape.sink) + m_shape.recv_offset(me), m_shape.send,
         m_shape.block_elements(me) * m_shape.element_bytes, m_shared);
  }

  void pull() {
    const int me = m_team.rank();
    for (int i = 0; i < m_team.size(); ++i) {
      const int peer = (me + i) % m_team.size();
      const std::uint64_t bytes = m_shape.block_elements(peer) * m_shape.element_bytes;
      if (m_shape.contributes(peer) && bytes > 0)
        copy(m_shape.recv + m_shape.recv_offset(peer), send_of(peer) + m_shape.send_offset(me), bytes,
             m_results);
    }
  }

  void reduce_own_block() {
    for (int r = 0; r < m_team.size(); ++r)
      m_work.sources[static_cast<std::size_t>(r)] = send_of(r) + m_shape.send_offset(m_team.rank());
    m_shape.reduce(m_shape.recv, m_work.sources.data(), m_team.size(), m_shape.count);
  }

  // This rank reduces its slice of all vectors and writes the result to every taker. Slices are disjoint
  // and whole lines, so in place is no special case: nobody else touches this slice of any buffer.
  void reduce_slice() {
    const std::uint64_t bytes = m_shape.element_bytes, ranks = static_cast<std::uint64_t>(m_team.size());
    const std::uint64_t slice = round_up((m_shape.count + ranks - 1) / ranks, line_bytes / bytes);
    const std::uint64_t begin = std::min(m_shape.count, slice * static_cast<std::uint64_t>(m_team.rank()));
    const std::uint64_t end = std::min(m_shape.count, begin + slice);
    m_work.destinations.clear();
    for (int i = 0; i < m_team.size(); ++i) {
      const int peer = (m_team.rank() + i) % m_team.size();
      if (m_shape.takes(peer)) m_work.destinations.push_back(recv_of(peer));
    }
    const std::uint64_t block = page_bytes / bytes;
    alignas(line_bytes) std::byte result[page_bytes];
    for (std::uint64_t at = begin; at < end; at += block) {
      const std::uint64_t length = std::min(block, end - at);
      for (int r = 0; r < m_team.size(); ++r)
        m_work.sources[static_cast<std::size_t>(r)] = send_of(r) + at * bytes;
      m_shape.reduce(result, m_work.sources.data(), m_team.size(), length);
      for (std::byte* destination : m_work.destinations)
        copy(destination + at * bytes, result, length * bytes, m_shared);
    }
  }

  team& m_team;
  workspace& m_work;
  const shape& m_shape;
  store m_shared, m_results;
  std::uint64_t m_ticket = 0;
  buffer m_send, m_recv;
};

}  // namespace

bool run_direct(team& team, workspace& work, const shape& s, store shared, bool updates_in_place) {
  return direct(team, work, s, shared).run(updates_in_place);
}

}  // namespace isthmus::host
