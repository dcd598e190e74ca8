// Collectives that move blocks and reduce nothing.
#include "backends/ucx/algorithms.hpp"

#include <algorithm>
#include <optional>

#include "backends/ucx/pairwise_schedule.hpp"

namespace isthmus::ucx {

const char* const algorithm_names[] = {"direct", "two_shot", "tree", "chain", "ring", nullptr};

namespace {

bool is_vector_reduction(const collective_row& row) { return row.is_reduction && row.send_extent == extent::count; }
bool is_broadcast(const collective_row& row) {
  return !row.is_reduction && row.send_ranks == buffer_ranks::root && row.send_extent == extent::count;
}
bool gives_all_ranks_everything(const collective_row& row) {
  return row.send_ranks == buffer_ranks::all && row.recv_ranks == buffer_ranks::all && row.send_extent == extent::count &&
         !has_counts(row);
}

std::optional<algorithm> find(const char* name) {
  const int index = isthmus_algorithm_index(algorithm_names, name);
  return index < 0 ? std::nullopt : std::optional(static_cast<algorithm>(index));
}

// Whose blocks all get.
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

// Each block straight from who has it to who wants it; where all have blocks for all, peers take turns.
void exchange_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = state.size();
  const block out = blocks.outgoing_block(state.rank()), in = blocks.incoming_block(state.rank());
  if (in.bytes > 0 && recv + in.offset != send + out.offset) state.copy(recv + in.offset, send + out.offset, in.bytes);
  // In place a block that arrives overwrites what has yet to leave, so pieces leave from copies, to all at
  // once: a receive waits for the send to the same peer, whose turn may come last.
  const bool copies = overwrites_unsent_data(operation);
  const std::uint64_t ring = state.settings().chunk_bytes * state.settings().window;
  std::byte* copy = copies ? state.scratch(ring * static_cast<std::uint64_t>(size)) : nullptr;
  struct pair {
    peer_flow *sent, *received;
  };
  std::vector<pair> gated;
  pairwise_schedule order(state);
  for (int i = 1; i < size; ++i) {
    const int from = (state.rank() + size - i) % size;
    const block arriving = blocks.incoming_block(from);
    if (arriving.bytes == 0) continue;
    peer_flow& received = state.add(false, from, message_kind::contribution, recv + arriving.offset, arriving.bytes);
    if (copies) received.limit = 0;
    order.receives(i, received);
    gated.push_back({nullptr, &received});
  }
  for (int i = 1; i < size; ++i) {
    const int to = (state.rank() + i) % size;
    const block leaving = blocks.outgoing_block(to);
    if (leaving.bytes == 0) continue;
    peer_flow& sent =
        state.add(true, to, message_kind::contribution,
                  copies ? copy + ring * static_cast<std::uint64_t>(to) : send + leaving.offset, leaving.bytes);
    if (!copies) order.sends(i, sent);
    if (!copies) continue;
    sent.ring = ring;
    sent.origin = send + leaving.offset;
    for (pair& each : gated)
      if (each.received->peer == to) each.sent = &sent;
  }
  if (!copies) return state.run([&] { return order.step(); });
  state.run([&] {
    bool raised = false;
    for (const pair& each : gated) {
      const std::uint64_t limit = each.sent == nullptr ? each.received->bytes : each.sent->posted_bytes;
      raised |= each.received->limit != limit;
      each.received->limit = limit;
    }
    return raised;
  });
}

// From the root on; whoever has a piece passes it on. `next`: to whom, in the order of ranks from the root on.
void pass_on(ucx_state& state, const isthmus_operation& operation, const block_map& blocks, int previous,
             const std::vector<int>& next) {
  const bool is_root = operation.root == state.rank();
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  if (is_root && recv != send) state.copy(recv, send, bytes);
  const auto real = [&](int from_root) { return (from_root + operation.root) % state.size(); };
  peer_flow* const received = is_root ? nullptr : &state.add(false, real(previous), message_kind::contribution, recv, bytes);
  std::vector<peer_flow*> sent;
  for (const int to : next) {
    sent.push_back(&state.add(true, real(to), message_kind::contribution, is_root ? send : recv, bytes));
    if (!is_root) sent.back()->limit = 0;
  }
  state.run([&] {
    bool raised = false;
    for (peer_flow* each : sent) {
      if (received == nullptr || each->limit == received->completed_bytes) continue;
      each->limit = received->completed_bytes;
      raised = true;
    }
    return raised;
  });
}

void broadcast_chain(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const int own = (state.rank() + state.size() - operation.root) % state.size();
  std::vector<int> next;
  if (own + 1 < state.size()) next.push_back(own + 1);
  pass_on(state, operation, blocks, own - 1, next);
}

void broadcast_tree(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  const int own = (state.rank() + state.size() - operation.root) % state.size();
  int step = 1;
  while (own != 0 && (own & step) == 0) step *= 2;
  if (own == 0)
    while (step < state.size()) step *= 2;
  std::vector<int> next;
  for (int half = step / 2; half > 0; half /= 2)
    if (own + half < state.size()) next.push_back(own + half);
  pass_on(state, operation, blocks, own - step, next);
}

void gather_tree(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const block own = blocks.incoming_block(state.rank());
  if (recv + own.offset != operation.send_buf) state.copy(recv + own.offset, operation.send_buf, own.bytes);
  gather_by_doubling(state, recv, own.bytes);
}

void gather_ring(ucx_state& state, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  std::vector<block> at;
  for (int r = 0; r < state.size(); ++r) at.push_back(blocks.incoming_block(r));
  const block own = blocks.incoming_block(state.rank());
  if (own.bytes > 0 && recv + own.offset != operation.send_buf)
    state.copy(recv + own.offset, operation.send_buf, own.bytes);
  ring_exchange trip(state, message_kind::contribution, recv, at);
  state.run([&] { return trip.step(own.bytes); });
}

void barrier(ucx_state& state) {
  static const std::byte word{};
  std::byte heard{};
  for (int step = 1; step < state.size(); step *= 2) {
    state.add(false, (state.rank() + state.size() - step) % state.size(), message_kind::contribution, &heard, 1);
    state.add(true, (state.rank() + step) % state.size(), message_kind::contribution, &word, 1);
    state.run();
  }
}

}  // namespace

ring_exchange::ring_exchange(ucx_state& state, message_kind kind, std::byte* all, const std::vector<block>& at) {
  const std::vector<int>& ring = state.ring();
  const int size = state.size();
  const auto place = static_cast<int>(std::ranges::find(ring, state.rank()) - ring.begin());
  const auto rank_at = [&](int index) { return ring[static_cast<std::size_t>((index + 2 * size) % size)]; };
  for (int step = 0; step + 1 < size; ++step) {
    const auto leaving = static_cast<std::size_t>(rank_at(place - step));
    const auto coming = static_cast<std::size_t>(rank_at(place - step - 1));
    m_send_flows.push_back(&state.add(true, rank_at(place + 1), what, all + at[leaving].offset, at[leaving].bytes));
    m_recv_flows.push_back(&state.add(false, rank_at(place - 1), what, all + at[coming].offset, at[coming].bytes));
    m_send_flows.back()->limit = 0;
  }
}

bool ring_exchange::step(std::uint64_t own_limit) {
  bool raised = false;
  for (std::size_t i = 0; i < m_send_flows.size(); ++i) {
    const std::uint64_t limit = i == 0 ? own_limit : m_recv_flows[i - 1]->completed_bytes;
    raised |= m_send_flows[i]->limit != limit;
    m_send_flows[i]->limit = limit;
  }
  return raised;
}

// After the step of length s a rank has the blocks of the 2 s ranks that end with it.
void gather_by_doubling(ucx_state& state, std::byte* all, std::uint64_t block_bytes) {
  const int size = state.size(), rank = state.rank();
  const auto at = [&](int index) {
    return all + static_cast<std::uint64_t>((index + 2 * size) % size) * block_bytes;
  };
  // Blocks of neighbours lie together, but for the turn from the last rank to the first.
  const auto add_blocks = [&](bool sends, int peer, int first, int count) {
    const int begin = (first + 2 * size) % size, until_end = std::min(count, size - begin);
    state.add(sends, peer, message_kind::contribution, at(begin), static_cast<std::uint64_t>(until_end) * block_bytes);
    if (until_end < count)
      state.add(sends, peer, message_kind::contribution, all,
                static_cast<std::uint64_t>(count - until_end) * block_bytes);
  };
  for (int have = 1; have < size; have *= 2) {
    const int count = std::min(have, size - have);
    const int from = (rank + size - have) % size, to = (rank + have) % size;
    add_blocks(false, from, from - count + 1, count);
    add_blocks(true, to, rank - count + 1, count);
    state.run();
  }
}

const char* unsupported_reason(const isthmus_operation& operation, const char* name, int size, std::uint64_t chunk_bytes) {
  if (name == nullptr || *name == '\0') return nullptr;
  const auto asked = find(name);
  if (!asked) return "the ucx backend has no algorithm of that name";
  const collective_row& row = row_of(operation.collective);
  if (is_point_to_point(operation.collective)) return "a message has but one way: name no algorithm";
  if (row.send_extent == extent::nothing) return "a barrier has but one way: name no algorithm";
  const std::uint64_t bytes = operation.count * bytes_of(operation.datatype);
  switch (*asked) {
    case algorithm::direct: return nullptr;
    case algorithm::two_shot:
      return is_vector_reduction(row) ? nullptr : "two_shot is for allreduce and reduce";
    case algorithm::chain:
      return is_broadcast(row) ? nullptr : "chain is for what one rank has and all get whole";
    case algorithm::ring:
      return supports_ring(row) ? nullptr : "ring is for what all get of all: blocks or their sum";
    case algorithm::tree: break;
  }
  if (is_broadcast(row)) return nullptr;
  if (!gives_all_ranks_everything(row))
    return "tree is for what all get whole: of one rank, the blocks of all or their sum";
  return bytes <= chunk_bytes / static_cast<std::uint64_t>(size)
             ? nullptr
             : "all blocks together are larger than backend.ucx.chunk_bytes";
}

void run_collective(ucx_state& state, const isthmus_operation& operation, const char* name) {
  const collective_row& row = row_of(operation.collective);
  if (row.send_extent == extent::nothing) return barrier(state);
  if (operation.count == 0 && has_equal_count(row)) return;
  const block_map blocks(operation, state.rank(), state.size());
  const algorithm chosen = find(name).value_or(default_algorithm(row, state.has_shared_nodes()));
  if (row.is_reduction) {
    if (chosen == algorithm::tree) return reduce_tree(state, operation);
    if (chosen == algorithm::direct || !is_vector_reduction(row))
      return reduce_direct(state, operation, blocks);
    return reduce_two_shot(state, operation, blocks, chosen == algorithm::ring);
  }
  switch (chosen) {
    case algorithm::chain: return broadcast_chain(state, operation, blocks);
    case algorithm::tree:
      return is_broadcast(row) ? broadcast_tree(state, operation, blocks)
                                  : gather_tree(state, operation, blocks);
    case algorithm::ring: return gather_ring(state, operation, blocks);
    case algorithm::direct:
    case algorithm::two_shot: return exchange_direct(state, operation, blocks);
  }
}

}  // namespace isthmus::ucx
