// Collectives that move blocks and reduce nothing.
#include "backends/ucx/moves.hpp"

#include <algorithm>
#include <optional>

#include "backends/ucx/turns.hpp"

namespace isthmus::ucx {

const char* const algorithm_names[] = {"direct", "two_shot", "tree", "chain", "ring", nullptr};

namespace {

bool same_vector_for_all(const collective_row& row) { return row.is_reduction && row.send_extent == extent::count; }
bool from_one_to_all(const collective_row& row) {
  return !row.is_reduction && row.send_ranks == buffer_ranks::root && row.send_extent == extent::count;
}
bool from_all_to_all(const collective_row& row) {
  return row.send_ranks == buffer_ranks::all && row.recv_ranks == buffer_ranks::all && row.send_extent == extent::count &&
         !has_counts(row);
}

std::optional<algorithm> find(const char* name) {
  const int index = isthmus_algorithm_index(algorithm_names, name);
  return index < 0 ? std::nullopt : std::optional(static_cast<algorithm>(index));
}

// Whose blocks all get.
bool gathers_all(const collective_row& row) {
  return !row.is_reduction && row.send_ranks == buffer_ranks::all && row.send_extent == extent::count &&
         row.recv_ranks == buffer_ranks::all;
}
bool can_ring(const collective_row& row) {
  return gathers_all(row) || (same_vector_for_all(row) && row.recv_ranks == buffer_ranks::all);
}

algorithm default_of(const collective_row& row, bool shares_machines) {
  if (shares_machines && can_ring(row)) return algorithm::ring;
  if (same_vector_for_all(row)) return algorithm::two_shot;
  return from_one_to_all(row) ? algorithm::chain : algorithm::direct;
}

// Each block straight from who has it to who wants it; where all have blocks for all, peers take turns.
void move_direct(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = ranks.size();
  const block out = blocks.outgoing_block(ranks.rank()), in = blocks.incoming_block(ranks.rank());
  if (in.bytes > 0 && recv + in.offset != send + out.offset) ranks.copy(recv + in.offset, send + out.offset, in.bytes);
  // In place a block that arrives overwrites what has yet to leave, so pieces leave from copies, to all at
  // once: a receive waits for the send to the same peer, whose turn may come last.
  const bool copies = overwrites_unsent_data(operation);
  const std::uint64_t ring = ranks.tuned().piece_bytes * ranks.tuned().window;
  std::byte* copy = copies ? ranks.scratch(ring * static_cast<std::uint64_t>(size)) : nullptr;
  struct pair {
    flow *sent, *received;
  };
  std::vector<pair> gated;
  turns order(ranks);
  for (int i = 1; i < size; ++i) {
    const int from = (ranks.rank() + size - i) % size;
    const block arriving = blocks.incoming_block(from);
    if (arriving.bytes == 0) continue;
    flow& received = ranks.add(false, from, kind::contribution, recv + arriving.offset, arriving.bytes);
    if (copies) received.limit = 0;
    order.receives(i, received);
    gated.push_back({nullptr, &received});
  }
  for (int i = 1; i < size; ++i) {
    const int to = (ranks.rank() + i) % size;
    const block leaving = blocks.outgoing_block(to);
    if (leaving.bytes == 0) continue;
    flow& sent =
        ranks.add(true, to, kind::contribution,
                  copies ? copy + ring * static_cast<std::uint64_t>(to) : send + leaving.offset, leaving.bytes);
    if (!copies) order.sends(i, sent);
    if (!copies) continue;
    sent.ring = ring;
    sent.origin = send + leaving.offset;
    for (pair& each : gated)
      if (each.received->peer == to) each.sent = &sent;
  }
  if (!copies) return ranks.run([&] { return order.step(); });
  ranks.run([&] {
    bool raised = false;
    for (const pair& each : gated) {
      const std::uint64_t limit = each.sent == nullptr ? each.received->bytes : each.sent->begun;
      raised |= each.received->limit != limit;
      each.received->limit = limit;
    }
    return raised;
  });
}

// From the root on; whoever has a piece passes it on. `next`: to whom, in the order of ranks from the root on.
void pass_on(session& ranks, const isthmus_operation& operation, const block_map& blocks, int previous,
             const std::vector<int>& next) {
  const bool is_root = operation.root == ranks.rank();
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  if (is_root && recv != send) ranks.copy(recv, send, bytes);
  const auto real = [&](int from_root) { return (from_root + operation.root) % ranks.size(); };
  flow* const received = is_root ? nullptr : &ranks.add(false, real(previous), kind::contribution, recv, bytes);
  std::vector<flow*> sent;
  for (const int to : next) {
    sent.push_back(&ranks.add(true, real(to), kind::contribution, is_root ? send : recv, bytes));
    if (!is_root) sent.back()->limit = 0;
  }
  ranks.run([&] {
    bool raised = false;
    for (flow* each : sent) {
      if (received == nullptr || each->limit == received->completed) continue;
      each->limit = received->completed;
      raised = true;
    }
    return raised;
  });
}

void broadcast_chain(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  const int own = (ranks.rank() + ranks.size() - operation.root) % ranks.size();
  std::vector<int> next;
  if (own + 1 < ranks.size()) next.push_back(own + 1);
  pass_on(ranks, operation, blocks, own - 1, next);
}

void broadcast_tree(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  const int own = (ranks.rank() + ranks.size() - operation.root) % ranks.size();
  int step = 1;
  while (own != 0 && (own & step) == 0) step *= 2;
  if (own == 0)
    while (step < ranks.size()) step *= 2;
  std::vector<int> next;
  for (int half = step / 2; half > 0; half /= 2)
    if (own + half < ranks.size()) next.push_back(own + half);
  pass_on(ranks, operation, blocks, own - step, next);
}

void gather_tree(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const block own = blocks.incoming_block(ranks.rank());
  if (recv + own.offset != operation.send_buf) ranks.copy(recv + own.offset, operation.send_buf, own.bytes);
  gather_by_doubling(ranks, recv, own.bytes);
}

void gather_ring(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  std::vector<block> at;
  for (int r = 0; r < ranks.size(); ++r) at.push_back(blocks.incoming_block(r));
  const block own = blocks.incoming_block(ranks.rank());
  if (own.bytes > 0 && recv + own.offset != operation.send_buf)
    ranks.copy(recv + own.offset, operation.send_buf, own.bytes);
  round_trip trip(ranks, kind::contribution, recv, at);
  ranks.run([&] { return trip.step(own.bytes); });
}

void barrier(session& ranks) {
  static const std::byte word{};
  std::byte heard{};
  for (int step = 1; step < ranks.size(); step *= 2) {
    ranks.add(false, (ranks.rank() + ranks.size() - step) % ranks.size(), kind::contribution, &heard, 1);
    ranks.add(true, (ranks.rank() + step) % ranks.size(), kind::contribution, &word, 1);
    ranks.run();
  }
}

}  // namespace

round_trip::round_trip(session& ranks, kind what, std::byte* all, const std::vector<block>& at) {
  const std::vector<int>& ring = ranks.ring();
  const int size = ranks.size();
  const auto place = static_cast<int>(std::ranges::find(ring, ranks.rank()) - ring.begin());
  const auto rank_at = [&](int index) { return ring[static_cast<std::size_t>((index + 2 * size) % size)]; };
  for (int step = 0; step + 1 < size; ++step) {
    const auto leaving = static_cast<std::size_t>(rank_at(place - step));
    const auto coming = static_cast<std::size_t>(rank_at(place - step - 1));
    m_sent.push_back(&ranks.add(true, rank_at(place + 1), what, all + at[leaving].offset, at[leaving].bytes));
    m_received.push_back(&ranks.add(false, rank_at(place - 1), what, all + at[coming].offset, at[coming].bytes));
    m_sent.back()->limit = 0;
  }
}

bool round_trip::step(std::uint64_t own_limit) {
  bool raised = false;
  for (std::size_t i = 0; i < m_sent.size(); ++i) {
    const std::uint64_t limit = i == 0 ? own_limit : m_received[i - 1]->completed;
    raised |= m_sent[i]->limit != limit;
    m_sent[i]->limit = limit;
  }
  return raised;
}

// After the step of length s a rank has the blocks of the 2 s ranks that end with it.
void gather_by_doubling(session& ranks, std::byte* all, std::uint64_t block_bytes) {
  const int size = ranks.size(), rank = ranks.rank();
  const auto at = [&](int index) {
    return all + static_cast<std::uint64_t>((index + 2 * size) % size) * block_bytes;
  };
  // Blocks of neighbours lie together, but for the turn from the last rank to the first.
  const auto add_blocks = [&](bool sends, int peer, int first, int count) {
    const int begin = (first + 2 * size) % size, until_end = std::min(count, size - begin);
    ranks.add(sends, peer, kind::contribution, at(begin), static_cast<std::uint64_t>(until_end) * block_bytes);
    if (until_end < count)
      ranks.add(sends, peer, kind::contribution, all,
                static_cast<std::uint64_t>(count - until_end) * block_bytes);
  };
  for (int have = 1; have < size; have *= 2) {
    const int count = std::min(have, size - have);
    const int from = (rank + size - have) % size, to = (rank + have) % size;
    add_blocks(false, from, from - count + 1, count);
    add_blocks(true, to, rank - count + 1, count);
    ranks.run();
  }
}

const char* why_not(const isthmus_operation& operation, const char* name, int size, std::uint64_t piece_bytes) {
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
      return same_vector_for_all(row) ? nullptr : "two_shot is for allreduce and reduce";
    case algorithm::chain:
      return from_one_to_all(row) ? nullptr : "chain is for what one rank has and all get whole";
    case algorithm::ring:
      return can_ring(row) ? nullptr : "ring is for what all get of all: blocks or their sum";
    case algorithm::tree: break;
  }
  if (from_one_to_all(row)) return nullptr;
  if (!from_all_to_all(row))
    return "tree is for what all get whole: of one rank, the blocks of all or their sum";
  return bytes <= piece_bytes / static_cast<std::uint64_t>(size)
             ? nullptr
             : "all blocks together are larger than backend.ucx.chunk_bytes";
}

void run_collective(session& ranks, const isthmus_operation& operation, const char* name) {
  const collective_row& row = row_of(operation.collective);
  if (row.send_extent == extent::nothing) return barrier(ranks);
  if (operation.count == 0 && has_equal_count(row)) return;
  const block_map blocks(operation, ranks.rank(), ranks.size());
  const algorithm chosen = find(name).value_or(default_of(row, ranks.shares_machines()));
  if (row.is_reduction) {
    if (chosen == algorithm::tree) return reduce_tree(ranks, operation);
    if (chosen == algorithm::direct || !same_vector_for_all(row))
      return reduce_direct(ranks, operation, blocks);
    return reduce_two_shot(ranks, operation, blocks, chosen == algorithm::ring);
  }
  switch (chosen) {
    case algorithm::chain: return broadcast_chain(ranks, operation, blocks);
    case algorithm::tree:
      return from_one_to_all(row) ? broadcast_tree(ranks, operation, blocks)
                                  : gather_tree(ranks, operation, blocks);
    case algorithm::ring: return gather_ring(ranks, operation, blocks);
    case algorithm::direct:
    case algorithm::two_shot: return move_direct(ranks, operation, blocks);
  }
}

}  // namespace isthmus::ucx
