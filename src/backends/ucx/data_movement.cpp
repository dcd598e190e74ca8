// Data movement collectives, and the selection of algorithms.
#include <algorithm>

#include "backends/ucx/algorithms.hpp"

namespace isthmus::ucx {

const char* const algorithm_names[] = {"direct", "two_shot", "tree", "chain", "ring", nullptr};

namespace {

bool is_vector_reduction(const collective_row& row) {
  return row.is_reduction && row.send_extent == extent::count;
}
bool is_broadcast(const collective_row& row) {
  return !row.is_reduction && row.send_ranks == buffer_ranks::root && row.send_extent == extent::count;
}
bool is_allreduce_or_allgather(const collective_row& row) {
  return row.send_ranks == buffer_ranks::all && row.recv_ranks == buffer_ranks::all &&
         row.send_extent == extent::count && !has_counts(row);
}

// allgather and allgatherv
bool is_allgather(const collective_row& row) {
  return !row.is_reduction && row.send_ranks == buffer_ranks::all && row.send_extent == extent::count &&
         row.recv_ranks == buffer_ranks::all;
}
bool supports_ring(const collective_row& row) {
  return is_allgather(row) || (is_vector_reduction(row) && row.recv_ranks == buffer_ranks::all);
}

algorithm default_algorithm(const collective_row& row, bool has_shared_nodes) {
  if (has_shared_nodes && supports_ring(row)) return algorithm::ring;
  if (is_vector_reduction(row)) return algorithm::two_shot;
  return is_broadcast(row) ? algorithm::chain : algorithm::direct;
}

// The flows to and from one peer in an in-place exchange. send_flow is null if nothing is sent to that peer.
struct flow_pair {
  peer_flow *send_flow, *recv_flow;
};

// Limits each receive so that it overwrites only data that has been posted to the same peer. Returns true if a
// limit was raised.
bool raise_receive_limits(const std::vector<flow_pair>& pairs) {
  bool is_raised = false;
  for (const flow_pair& pair : pairs) {
    const std::uint64_t limit =
        pair.send_flow == nullptr ? pair.recv_flow->bytes : pair.send_flow->posted_bytes;
    is_raised |= pair.recv_flow->limit != limit;
    pair.recv_flow->limit = limit;
  }
  return is_raised;
}

// Each block goes directly from source to destination, in the order of the pairwise schedule.
void exchange_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size();
  const block out = blocks.outgoing_block(state.rank()), in = blocks.incoming_block(state.rank());
  if (in.bytes > 0 && recv + in.offset != send + out.offset)
    state.copy(recv + in.offset, send + out.offset, in.bytes);
  // In place, an incoming block could overwrite an unsent block, so chunks are sent from copies.
  // These sends are not scheduled: each receive waits for the send to the same peer, which might be last
  // in the schedule.
  const bool needs_copy = overwrites_unsent_data(operation);
  const std::uint64_t ring_bytes = state.settings().chunk_bytes * state.settings().window;
  std::byte* rings = needs_copy ? state.scratch(ring_bytes * static_cast<std::uint64_t>(size)) : nullptr;
  std::vector<flow_pair> pairs;
  pairwise_schedule schedule(state);
  for (int i = 1; i < size; ++i) {
    const int from = (state.rank() + size - i) % size;
    const block incoming = blocks.incoming_block(from);
    if (incoming.bytes == 0) continue;
    peer_flow& recv_flow =
        state.add(false, from, message_kind::contribution, recv + incoming.offset, incoming.bytes);
    if (needs_copy) recv_flow.limit = 0;
    schedule.add_receive(i, recv_flow);
    pairs.push_back({nullptr, &recv_flow});
  }
  for (int i = 1; i < size; ++i) {
    const int to = (state.rank() + i) % size;
    const block outgoing = blocks.outgoing_block(to);
    if (outgoing.bytes == 0) continue;
    peer_flow& send_flow =
        state.add(true, to, message_kind::contribution,
                  needs_copy ? rings + ring_bytes * static_cast<std::uint64_t>(to) : send + outgoing.offset,
                  outgoing.bytes);
    if (!needs_copy) schedule.add_send(i, send_flow);
    if (!needs_copy) continue;
    send_flow.ring_bytes = ring_bytes;
    send_flow.copy_source = send + outgoing.offset;
    for (flow_pair& pair : pairs)
      if (pair.recv_flow->peer == to) pair.send_flow = &send_flow;
  }
  if (!needs_copy) return state.run([&] { return schedule.advance(); });
  state.run([&] { return raise_receive_limits(pairs); });
}

// Pipelined broadcast: each rank forwards a chunk to its children as soon as it has arrived. Ranks of `parent`
// and `children` are relative to the root.
void forward_from_root(ucx_state& state, const isthmus_operation& operation, const block_map& blocks,
                       int parent, const std::vector<int>& children) {
  const bool is_root = operation.root == state.rank();
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  if (is_root && recv != send) state.copy(recv, send, bytes);
  const auto absolute_rank = [&](int relative_rank) { return (relative_rank + operation.root) % state.size(); };
  peer_flow* const recv_flow =
      is_root ? nullptr : &state.add(false, absolute_rank(parent), message_kind::contribution, recv, bytes);
  std::vector<peer_flow*> send_flows;
  for (const int child : children) {
    send_flows.push_back(
        &state.add(true, absolute_rank(child), message_kind::contribution, is_root ? send : recv, bytes));
    if (!is_root) send_flows.back()->limit = 0;
  }
  state.run([&] {
    bool is_raised = false;
    for (peer_flow* each : send_flows) {
      if (recv_flow == nullptr || each->limit == recv_flow->completed_bytes) continue;
      each->limit = recv_flow->completed_bytes;
      is_raised = true;
    }
    return is_raised;
  });
}

void broadcast_chain(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const int relative_rank = (state.rank() + state.size() - operation.root) % state.size();
  std::vector<int> children;
  if (relative_rank + 1 < state.size()) children.push_back(relative_rank + 1);
  forward_from_root(state, operation, blocks, relative_rank - 1, children);
}

void broadcast_tree(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const int relative_rank = (state.rank() + state.size() - operation.root) % state.size();
  int step = 1;
  while (relative_rank != 0 && (relative_rank & step) == 0) step *= 2;
  if (relative_rank == 0)
    while (step < state.size()) step *= 2;
  std::vector<int> children;
  for (int half = step / 2; half > 0; half /= 2)
    if (relative_rank + half < state.size()) children.push_back(relative_rank + half);
  forward_from_root(state, operation, blocks, relative_rank - step, children);
}

void gather_tree(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const block own = blocks.incoming_block(state.rank());
  if (recv + own.offset != operation.send_buf) state.copy(recv + own.offset, operation.send_buf, own.bytes);
  gather_by_doubling(state, recv, own.bytes);
}

void gather_ring(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  std::vector<block> blocks_by_rank;
  for (int r = 0; r < state.size(); ++r) blocks_by_rank.push_back(blocks.incoming_block(r));
  const block own = blocks.incoming_block(state.rank());
  if (own.bytes > 0 && recv + own.offset != operation.send_buf)
    state.copy(recv + own.offset, operation.send_buf, own.bytes);
  ring_exchange exchange(state, message_kind::contribution, recv, blocks_by_rank);
  state.run([&] { return exchange.advance(own.bytes); });
}

void barrier(ucx_state& state) {
  static const std::byte dummy_byte{};
  std::byte received{};
  for (int step = 1; step < state.size(); step *= 2) {
    state.add(false, (state.rank() + state.size() - step) % state.size(), message_kind::contribution, &received,
              1);
    state.add(true, (state.rank() + step) % state.size(), message_kind::contribution, &dummy_byte, 1);
    state.run();
  }
}

}  // namespace

ring_exchange::ring_exchange(ucx_state& state, message_kind kind, std::byte* buffer,
                             const std::vector<block>& blocks) {
  const std::vector<int>& ring = state.ring();
  const int size = state.size();
  const auto position = static_cast<int>(std::ranges::find(ring, state.rank()) - ring.begin());
  const auto ring_rank = [&](int index) { return ring[static_cast<std::size_t>((index + 2 * size) % size)]; };
  for (int step = 0; step + 1 < size; ++step) {
    const block& outgoing = blocks[static_cast<std::size_t>(ring_rank(position - step))];
    const block& incoming = blocks[static_cast<std::size_t>(ring_rank(position - step - 1))];
    m_send_flows.push_back(
        &state.add(true, ring_rank(position + 1), kind, buffer + outgoing.offset, outgoing.bytes));
    m_recv_flows.push_back(
        &state.add(false, ring_rank(position - 1), kind, buffer + incoming.offset, incoming.bytes));
    m_send_flows.back()->limit = 0;
  }
}

bool ring_exchange::advance(std::uint64_t own_limit) {
  bool is_raised = false;
  for (std::size_t i = 0; i < m_send_flows.size(); ++i) {
    const std::uint64_t limit = i == 0 ? own_limit : m_recv_flows[i - 1]->completed_bytes;
    is_raised |= m_send_flows[i]->limit != limit;
    m_send_flows[i]->limit = limit;
  }
  return is_raised;
}

// After the step with distance s, rank r has the blocks of ranks r - 2s + 1 to r.
void gather_by_doubling(ucx_state& state, std::byte* buffer, std::uint64_t block_bytes) {
  const int size = state.size(), rank = state.rank();
  const auto block_of = [&](int index) {
    return buffer + static_cast<std::uint64_t>((index + 2 * size) % size) * block_bytes;
  };
  // The blocks of neighboring ranks are adjacent, except at the wrap from the last rank to the first.
  const auto add_blocks = [&](bool sends, int peer, int first, int count) {
    const int begin = (first + 2 * size) % size, count_before_wrap = std::min(count, size - begin);
    state.add(sends, peer, message_kind::contribution, block_of(begin),
              static_cast<std::uint64_t>(count_before_wrap) * block_bytes);
    if (count_before_wrap < count)
      state.add(sends, peer, message_kind::contribution, buffer,
                static_cast<std::uint64_t>(count - count_before_wrap) * block_bytes);
  };
  for (int gathered_blocks = 1; gathered_blocks < size; gathered_blocks *= 2) {
    const int count = std::min(gathered_blocks, size - gathered_blocks);
    const int from = (rank + size - gathered_blocks) % size, to = (rank + gathered_blocks) % size;
    add_blocks(false, from, from - count + 1, count);
    add_blocks(true, to, rank - count + 1, count);
    state.run();
  }
}

const char* unsupported_reason(const isthmus_operation& operation, int index, int size,
                               std::uint64_t chunk_bytes) {
  if (index == ISTHMUS_ANY_ALGORITHM) return nullptr;
  const collective_row& row = row_of(operation.collective);
  if (is_point_to_point(operation.collective))
    return "send and recv have only one algorithm; leave it out of the rule";
  if (row.send_extent == extent::nothing) return "barrier has only one algorithm; leave it out of the rule";
  const std::uint64_t bytes = operation.count * bytes_of(operation.datatype);
  switch (static_cast<algorithm>(index)) {
    case algorithm::direct: return nullptr;
    case algorithm::two_shot:
      return is_vector_reduction(row) ? nullptr : "two_shot supports allreduce and reduce only";
    case algorithm::chain: return is_broadcast(row) ? nullptr : "chain supports broadcast only";
    case algorithm::ring:
      return supports_ring(row) ? nullptr : "ring supports allreduce, allgather and allgatherv only";
    case algorithm::tree: break;
  }
  if (is_broadcast(row)) return nullptr;
  if (!is_allreduce_or_allgather(row)) return "tree supports broadcast, allreduce and allgather only";
  return bytes <= chunk_bytes / static_cast<std::uint64_t>(size)
             ? nullptr
             : "the blocks of all ranks together are larger than backend.ucx.chunk_bytes";
}

void run_collective(ucx_state& state, const isthmus_operation& operation, int index) {
  const collective_row& row = row_of(operation.collective);
  if (row.send_extent == extent::nothing) return barrier(state);
  if (operation.count == 0 && has_equal_count(row)) return;
  const block_map blocks(operation, state.rank(), state.size());
  const algorithm selected = index == ISTHMUS_ANY_ALGORITHM ? default_algorithm(row, state.has_shared_nodes())
                                                            : static_cast<algorithm>(index);
  if (row.is_reduction) {
    if (selected == algorithm::tree) return reduce_tree(state, operation);
    if (selected == algorithm::direct || !is_vector_reduction(row))
      return reduce_direct(state, operation, blocks);
    return reduce_two_shot(state, operation, blocks, selected == algorithm::ring);
  }
  switch (selected) {
    case algorithm::chain: return broadcast_chain(state, operation, blocks);
    case algorithm::tree:
      return is_broadcast(row) ? broadcast_tree(state, operation, blocks)
                               : gather_tree(state, operation, blocks);
    case algorithm::ring: return gather_ring(state, operation, blocks);
    case algorithm::direct:
    case algorithm::two_shot: return exchange_direct(state, operation, blocks);
  }
}

// ---- pairwise schedule ---------------------------------------------------------------------------------

// The data that must arrive before the next step fits into the ring of a chunk_reducer, which waits
// for all peers.
pairwise_schedule::pairwise_schedule(const ucx_state& state)
    : m_step_bytes(state.settings().chunk_bytes * state.settings().window),
      m_slack_bytes(state.settings().chunk_bytes * (state.settings().window - state.settings().window / 4)),
      m_send_flows(static_cast<std::size_t>(state.size() - 1)),
      m_recv_flows(m_send_flows.size()) {}

void pairwise_schedule::add_send(int step, peer_flow& send_flow) {
  if (m_send_flows.size() == 1) return;  // a single peer needs no schedule
  m_send_flows[static_cast<std::size_t>(step - 1)] = &send_flow;
  send_flow.limit = 0;
  m_end_step = std::max(m_end_step, (send_flow.bytes + m_step_bytes - 1) / m_step_bytes * m_send_flows.size());
}

void pairwise_schedule::add_receive(int step, const peer_flow& recv_flow) {
  m_recv_flows[static_cast<std::size_t>(step - 1)] = &recv_flow;
}

bool pairwise_schedule::advance() {
  const std::uint64_t previous_step = m_next_step;
  for (; m_next_step < m_end_step && (m_next_step == 0 || has_arrived(m_next_step - 1)); ++m_next_step)
    if (peer_flow* const send_flow = m_send_flows[m_next_step % m_send_flows.size()])
      send_flow->limit = end_of_round(*send_flow, m_next_step / m_send_flows.size());
  return m_next_step != previous_step;
}

std::uint64_t pairwise_schedule::end_of_round(const peer_flow& step_flow, std::uint64_t round) const {
  return std::min(step_flow.bytes, (round + 1) * m_step_bytes);
}

bool pairwise_schedule::has_arrived(std::uint64_t step) const {
  const peer_flow* const recv_flow = m_recv_flows[step % m_recv_flows.size()];
  return recv_flow == nullptr ||
         recv_flow->completed_bytes + m_slack_bytes >= end_of_round(*recv_flow, step / m_recv_flows.size());
}

}  // namespace isthmus::ucx
