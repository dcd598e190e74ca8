// Collectives that reduce. Contributions travel as they are and one rank combines all of an element, in the
// order of the ranks, rounded once: all ranks get the same bits, whatever the algorithm, and the number of
// machines.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/ucx/algorithms.hpp"
#include "backends/ucx/pairwise_schedule.hpp"

namespace isthmus::ucx {
namespace {

// Combines a part of a vector of which this rank has its own contribution and the others' arrive.
class chunk_reducer {
 public:
  // `own`: where this rank's contribution to the part is; `out` may be the same.
  chunk_reducer(ucx_state& state, const isthmus_operation& operation, const std::byte* own, std::byte* out,
           std::uint64_t bytes, pairwise_schedule& order)
      : m_state(state),
        m_reduce(state.kernels().reduce[operation.datatype][operation.op]),
        m_element_bytes(bytes_of(operation.datatype)),
        m_own(own),
        m_out(out),
        m_bytes(bytes),
        m_chunk_bytes(state.settings().chunk_bytes),
        m_ring_bytes(m_chunk_bytes * state.settings().window),
        m_sources(static_cast<std::size_t>(state.size())) {
    if (bytes == 0) return;
    m_ring_bytes = std::min(m_ring_bytes, bytes);  // then it is never gone around
    m_staging = state.scratch(m_ring_bytes * static_cast<std::uint64_t>(state.size()));
    for (int i = 1; i < state.size(); ++i) {
      const int from = (state.rank() + state.size() - i) % state.size();
      peer_flow& arriving = state.add(false, from, message_kind::contribution, ring_buffer(from), bytes);
      arriving.ring = m_ring_bytes;
      arriving.limit = m_ring_bytes;
      order.receives(i, arriving);
      m_incoming.push_back(&arriving);
    }
    if (m_incoming.empty()) reduce_all();
  }

  // Combines what has arrived of all. True when it did something.
  bool step() {
    const std::uint64_t before = m_reduced_bytes;
    while (m_reduced_bytes < m_bytes) {
      const std::uint64_t bytes = std::min(m_chunk_bytes, m_bytes - m_reduced_bytes);
      if (!std::ranges::all_of(m_incoming, [&](const peer_flow* each) { return each->completed_bytes >= m_reduced_bytes + bytes; }))
        break;
      reduce_chunk(bytes);
      for (peer_flow* each : m_incoming) each->limit = m_reduced_bytes + m_ring_bytes;
    }
    return m_reduced_bytes != before;
  }
  std::uint64_t done() const { return m_reduced_bytes; }

 private:
  std::byte* ring_buffer(int rank) const { return m_staging + m_ring_bytes * static_cast<std::uint64_t>(rank); }
  void reduce_all() {
    while (m_reduced_bytes < m_bytes) reduce_chunk(std::min(m_chunk_bytes, m_bytes - m_reduced_bytes));
  }
  void reduce_chunk(std::uint64_t bytes) {
    for (int r = 0; r < m_state.size(); ++r)
      m_sources[static_cast<std::size_t>(r)] =
          r == m_state.rank() ? m_own + m_reduced_bytes : ring_buffer(r) + m_reduced_bytes % m_ring_bytes;
    m_reduce(m_out + m_reduced_bytes, m_sources.data(), m_state.size(), bytes / m_element_bytes);
    m_reduced_bytes += bytes;
  }

  ucx_state& m_state;
  cpu::reduce_function m_reduce;
  std::uint64_t m_element_bytes;
  const std::byte* m_own;
  std::byte* m_out;
  std::uint64_t m_bytes, m_chunk_bytes, m_ring_bytes;
  std::byte* m_staging = nullptr;
  std::vector<const void*> m_sources;
  std::vector<peer_flow*> m_incoming;
  std::uint64_t m_reduced_bytes = 0;
};

// Both, whatever the first says.
bool step(pairwise_schedule& order, chunk_reducer& combined) {
  const bool leaves = order.step();
  return combined.step() || leaves;
}

}  // namespace

// Each contribution straight to who combines it.
void reduce_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size(), rank = state.rank();
  const bool takes = blocks.is_receiver(rank);
  // In place the result overwrites what others still get: where all take the same vector, into scratch first.
  const bool is_shared = takes && blocks.sends_same_block() && blocks.receiver == all_ranks && send == recv;
  const std::uint64_t bytes = takes ? blocks.incoming_block(rank).bytes : 0;
  std::byte* const out = is_shared ? state.scratch(bytes) : recv;
  pairwise_schedule order(state);
  chunk_reducer combined(state, operation, send + blocks.outgoing_block(rank).offset, out, bytes, order);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    const block leaving = blocks.outgoing_block(to);
    if (leaving.bytes > 0)
      order.sends(i, state.add(true, to, message_kind::contribution, send + leaving.offset, leaving.bytes));
  }
  state.run([&] { return step(order, combined); });
  if (is_shared) std::memcpy(recv, out, bytes);
}

// Every rank combines a slice and hands it on while the rest of it still arrives: the sums hide behind the
// wire.
void reduce_two_shot(ucx_state& state, const isthmus_operation& operation, const block_map& blocks,
                     bool by_ring) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size(), rank = state.rank();
  constexpr std::uint64_t line = 64;
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  const std::uint64_t mean = (bytes + static_cast<std::uint64_t>(size) - 1) / static_cast<std::uint64_t>(size);
  const std::uint64_t slice = (mean + line - 1) / line * line;
  const auto slice_begin = [&](int r) { return std::min(bytes, slice * static_cast<std::uint64_t>(r)); };
  const auto slice_bytes = [&](int r) { return slice_begin(r + 1) - slice_begin(r); };
  const bool takes = blocks.is_receiver(rank);
  // Who takes nothing has no room for its slice.
  std::byte* const out = takes ? recv + slice_begin(rank) : state.scratch(slice_bytes(rank));
  pairwise_schedule order(state);
  chunk_reducer combined(state, operation, send + slice_begin(rank), out, slice_bytes(rank), order);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    order.sends(i, state.add(true, to, message_kind::contribution, send + slice_begin(to), slice_bytes(to)));
  }
  if (by_ring) {
    std::vector<block> at;
    for (int r = 0; r < size; ++r) at.push_back({slice_begin(r), slice_bytes(r)});
    ring_exchange trip(state, message_kind::result, recv, at);
    return state.run([&] {
      const bool more = step(order, combined);
      return trip.step(combined.done()) || more;
    });
  }
  std::vector<peer_flow*> results;
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size, from = (rank + size - i) % size;
    if (takes) state.add(false, from, message_kind::result, recv + slice_begin(from), slice_bytes(from));
    if (!blocks.is_receiver(to)) continue;
    results.push_back(&state.add(true, to, message_kind::result, out, slice_bytes(rank)));
    results.back()->limit = 0;
  }
  state.run([&] {
    const bool more = step(order, combined);
    for (peer_flow* each : results) each->limit = combined.done();
    return more;
  });
}

// All contributions to all in log2(size) steps, and everybody combines them.
void reduce_tree(ucx_state& state, const isthmus_operation& operation) {
  const auto size = static_cast<std::uint64_t>(state.size());
  const std::uint64_t bytes = operation.count * bytes_of(operation.datatype);
  std::byte* const all = state.scratch(bytes * size);
  std::memcpy(all + bytes * static_cast<std::uint64_t>(state.rank()), operation.send_buf, bytes);
  gather_by_doubling(state, all, bytes);
  std::vector<const void*> sources(size);
  for (std::uint64_t r = 0; r < size; ++r) sources[r] = all + bytes * r;
  state.kernels().reduce[operation.datatype][operation.op](operation.recv_buf, sources.data(), state.size(),
                                                           operation.count);
}

}  // namespace isthmus::ucx
