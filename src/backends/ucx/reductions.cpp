// Reductions. Contributions are sent unreduced, and one rank combines all contributions to an element in rank
// order and rounds once. All ranks therefore get the same bits, for every algorithm and every number of nodes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/ucx/algorithms.hpp"

namespace isthmus::ucx {
namespace {

// Reduces this rank's slice of a vector, chunk by chunk, as the contributions of the peers arrive.
class chunk_reducer {
 public:
  // `own` is this rank's contribution to the slice; `out` may be equal to it.
  chunk_reducer(ucx_state& state, const isthmus_operation& operation, const std::byte* own, std::byte* out,
                std::uint64_t bytes, pairwise_schedule& schedule)
      : m_state(state),
        m_reduce(state.kernels().reduce[operation.datatype][operation.op]),
        m_element_bytes(bytes_of(operation.datatype)),
        m_contribution(own),
        m_result(out),
        m_bytes(bytes),
        m_chunk_bytes(state.settings().chunk_bytes),
        m_ring_bytes(m_chunk_bytes * state.settings().window),
        m_sources(static_cast<std::size_t>(state.size())) {
    if (bytes == 0) return;
    m_ring_bytes = std::min(m_ring_bytes, bytes);  // a short slice never wraps around
    m_staging = state.scratch(m_ring_bytes * static_cast<std::uint64_t>(state.size()));
    for (int i = 1; i < state.size(); ++i) {
      const int source = (state.rank() + state.size() - i) % state.size();
      peer_flow& incoming = state.add(false, source, message_kind::contribution, ring_buffer(source), bytes);
      incoming.ring_bytes = m_ring_bytes;
      incoming.limit = m_ring_bytes;
      schedule.add_receive(i, incoming);
      m_incoming.push_back(&incoming);
    }
    if (m_incoming.empty()) reduce_all();
  }

  // Reduces the chunks that have arrived from all peers. Returns true if it reduced any chunk.
  bool advance() {
    const std::uint64_t before = m_reduced_bytes;
    while (m_reduced_bytes < m_bytes) {
      const std::uint64_t bytes = std::min(m_chunk_bytes, m_bytes - m_reduced_bytes);
      if (!std::ranges::all_of(m_incoming, [&](const peer_flow* each) {
            return each->completed_bytes >= m_reduced_bytes + bytes;
          }))
        break;
      reduce_chunk(bytes);
      for (peer_flow* each : m_incoming) each->limit = m_reduced_bytes + m_ring_bytes;
    }
    return m_reduced_bytes != before;
  }
  std::uint64_t reduced_bytes() const { return m_reduced_bytes; }

 private:
  std::byte* ring_buffer(int rank) const { return m_staging + m_ring_bytes * static_cast<std::uint64_t>(rank); }
  void reduce_all() {
    while (m_reduced_bytes < m_bytes) reduce_chunk(std::min(m_chunk_bytes, m_bytes - m_reduced_bytes));
  }
  void reduce_chunk(std::uint64_t bytes) {
    for (int r = 0; r < m_state.size(); ++r)
      m_sources[static_cast<std::size_t>(r)] = r == m_state.rank()
                                                   ? m_contribution + m_reduced_bytes
                                                   : ring_buffer(r) + m_reduced_bytes % m_ring_bytes;
    m_reduce(m_result + m_reduced_bytes, m_sources.data(), m_state.size(), bytes / m_element_bytes);
    m_reduced_bytes += bytes;
  }

  ucx_state& m_state;
  cpu::reduce_function m_reduce;
  std::uint64_t m_element_bytes;
  const std::byte* m_contribution;
  std::byte* m_result;
  std::uint64_t m_bytes, m_chunk_bytes, m_ring_bytes;
  std::byte* m_staging = nullptr;
  std::vector<const void*> m_sources;
  std::vector<peer_flow*> m_incoming;
  std::uint64_t m_reduced_bytes = 0;
};

// Advances both, even if the first has made progress.
bool advance(pairwise_schedule& schedule, chunk_reducer& reducer) {
  const bool has_sent = schedule.advance();
  return reducer.advance() || has_sent;
}

}  // namespace

// Each contribution goes directly to the rank that reduces it.
void reduce_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size(), rank = state.rank();
  const bool is_receiver = blocks.is_receiver(rank);
  // In place, the result would overwrite data that peers have not received. If all ranks receive the same
  // vector, reduce into scratch memory first.
  const bool overwrites_input =
      is_receiver && blocks.sends_same_block() && blocks.receiver == all_ranks && send == recv;
  const std::uint64_t bytes = is_receiver ? blocks.incoming_block(rank).bytes : 0;
  std::byte* const out = overwrites_input ? state.scratch(bytes) : recv;
  pairwise_schedule schedule(state);
  chunk_reducer reducer(state, operation, send + blocks.outgoing_block(rank).offset, out, bytes, schedule);
  for (int i = 1; i < size; ++i) {
    const int destination = (rank + i) % size;
    const block outgoing = blocks.outgoing_block(destination);
    if (outgoing.bytes > 0)
      schedule.add_send(
          i, state.add(true, destination, message_kind::contribution, send + outgoing.offset, outgoing.bytes));
  }
  state.run([&] { return advance(schedule, reducer); });
  if (overwrites_input) std::memcpy(recv, out, bytes);
}

// Every rank reduces a slice and sends its result while the rest of the slice arrives. This overlaps
// computation with communication.
void reduce_two_shot(ucx_state& state, const isthmus_operation& operation, const block_map& blocks,
                     bool uses_ring) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size(), rank = state.rank();
  constexpr std::uint64_t line = 64;
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  const std::uint64_t share = (bytes + static_cast<std::uint64_t>(size) - 1) / static_cast<std::uint64_t>(size);
  const std::uint64_t slice = (share + line - 1) / line * line;
  const auto slice_begin = [&](int r) { return std::min(bytes, slice * static_cast<std::uint64_t>(r)); };
  const auto slice_bytes = [&](int r) { return slice_begin(r + 1) - slice_begin(r); };
  const bool is_receiver = blocks.is_receiver(rank);
  // A rank that receives no result has no buffer for its slice.
  std::byte* const out = is_receiver ? recv + slice_begin(rank) : state.scratch(slice_bytes(rank));
  pairwise_schedule schedule(state);
  chunk_reducer reducer(state, operation, send + slice_begin(rank), out, slice_bytes(rank), schedule);
  for (int i = 1; i < size; ++i) {
    const int destination = (rank + i) % size;
    schedule.add_send(i, state.add(true, destination, message_kind::contribution,
                                   send + slice_begin(destination), slice_bytes(destination)));
  }
  if (uses_ring) {
    std::vector<block> slices;
    for (int r = 0; r < size; ++r) slices.push_back({slice_begin(r), slice_bytes(r)});
    ring_exchange exchange(state, message_kind::result, recv, slices);
    return state.run([&] {
      const bool has_progress = advance(schedule, reducer);
      return exchange.advance(reducer.reduced_bytes()) || has_progress;
    });
  }
  std::vector<peer_flow*> results;
  for (int i = 1; i < size; ++i) {
    const int destination = (rank + i) % size, source = (rank + size - i) % size;
    if (is_receiver)
      state.add(false, source, message_kind::result, recv + slice_begin(source), slice_bytes(source));
    if (!blocks.is_receiver(destination)) continue;
    results.push_back(&state.add(true, destination, message_kind::result, out, slice_bytes(rank)));
    results.back()->limit = 0;
  }
  state.run([&] {
    const bool has_progress = advance(schedule, reducer);
    for (peer_flow* each : results) each->limit = reducer.reduced_bytes();
    return has_progress;
  });
}

// All ranks gather all contributions in log2(size) steps, and each rank reduces them.
void reduce_tree(ucx_state& state, const isthmus_operation& operation) {
  const auto size = static_cast<std::uint64_t>(state.size());
  const std::uint64_t bytes = operation.count * bytes_of(operation.datatype);
  std::byte* const gathered = state.scratch(bytes * size);
  std::memcpy(gathered + bytes * static_cast<std::uint64_t>(state.rank()), operation.send_buf, bytes);
  gather_by_doubling(state, gathered, bytes);
  std::vector<const void*> sources(size);
  for (std::uint64_t r = 0; r < size; ++r) sources[r] = gathered + bytes * r;
  state.kernels().reduce[operation.datatype][operation.op](operation.recv_buf, sources.data(), state.size(),
                                                           operation.count);
}

}  // namespace isthmus::ucx
