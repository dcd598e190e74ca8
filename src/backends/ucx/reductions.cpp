// Collectives that reduce. Contributions travel as they are and one rank combines all of an element, in the
// order of the ranks, rounded once: all ranks get the same bits, whatever the algorithm, and the number of
// machines.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/ucx/moves.hpp"
#include "backends/ucx/turns.hpp"

namespace isthmus::ucx {
namespace {

// Combines a part of a vector of which this rank has its own contribution and the others' arrive.
class combiner {
 public:
  // `own`: where this rank's contribution to the part is; `out` may be the same.
  combiner(session& ranks, const isthmus_operation& operation, const std::byte* own, std::byte* out,
           std::uint64_t bytes, turns& order)
      : m_ranks(ranks),
        m_reduce(ranks.kernels().reduce[operation.datatype][operation.op]),
        m_element_bytes(bytes_of(operation.datatype)),
        m_own(own),
        m_out(out),
        m_bytes(bytes),
        m_piece(ranks.tuned().piece_bytes),
        m_ring(m_piece * ranks.tuned().window),
        m_sources(static_cast<std::size_t>(ranks.size())) {
    if (bytes == 0) return;
    m_ring = std::min(m_ring, bytes);  // then it is never gone around
    m_staging = ranks.scratch(m_ring * static_cast<std::uint64_t>(ranks.size()));
    for (int i = 1; i < ranks.size(); ++i) {
      const int from = (ranks.rank() + ranks.size() - i) % ranks.size();
      flow& arriving = ranks.add(false, from, kind::contribution, ring_of(from), bytes);
      arriving.ring = m_ring;
      arriving.limit = m_ring;
      order.receives(i, arriving);
      m_arriving.push_back(&arriving);
    }
    if (m_arriving.empty()) combine_all();
  }

  // Combines what has arrived of all. True when it did something.
  bool step() {
    const std::uint64_t before = m_done;
    while (m_done < m_bytes) {
      const std::uint64_t bytes = std::min(m_piece, m_bytes - m_done);
      if (!std::ranges::all_of(m_arriving, [&](const flow* each) { return each->completed >= m_done + bytes; }))
        break;
      combine(bytes);
      for (flow* each : m_arriving) each->limit = m_done + m_ring;
    }
    return m_done != before;
  }
  std::uint64_t done() const { return m_done; }

 private:
  std::byte* ring_of(int rank) const { return m_staging + m_ring * static_cast<std::uint64_t>(rank); }
  void combine_all() {
    while (m_done < m_bytes) combine(std::min(m_piece, m_bytes - m_done));
  }
  void combine(std::uint64_t bytes) {
    for (int r = 0; r < m_ranks.size(); ++r)
      m_sources[static_cast<std::size_t>(r)] =
          r == m_ranks.rank() ? m_own + m_done : ring_of(r) + m_done % m_ring;
    m_reduce(m_out + m_done, m_sources.data(), m_ranks.size(), bytes / m_element_bytes);
    m_done += bytes;
  }

  session& m_ranks;
  cpu::reduce_function m_reduce;
  std::uint64_t m_element_bytes;
  const std::byte* m_own;
  std::byte* m_out;
  std::uint64_t m_bytes, m_piece, m_ring;
  std::byte* m_staging = nullptr;
  std::vector<const void*> m_sources;
  std::vector<flow*> m_arriving;
  std::uint64_t m_done = 0;
};

// Both, whatever the first says.
bool step(turns& order, combiner& combined) {
  const bool leaves = order.step();
  return combined.step() || leaves;
}

}  // namespace

// Each contribution straight to who combines it.
void reduce_direct(session& ranks, const isthmus_operation& operation, const block_map& blocks) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = ranks.size(), rank = ranks.rank();
  const bool takes = blocks.is_receiver(rank);
  // In place the result overwrites what others still get: where all take the same vector, into scratch first.
  const bool is_shared = takes && blocks.sends_same_block() && blocks.receiver == all_ranks && send == recv;
  const std::uint64_t bytes = takes ? blocks.incoming_block(rank).bytes : 0;
  std::byte* const out = is_shared ? ranks.scratch(bytes) : recv;
  turns order(ranks);
  combiner combined(ranks, operation, send + blocks.outgoing_block(rank).offset, out, bytes, order);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    const block leaving = blocks.outgoing_block(to);
    if (leaving.bytes > 0)
      order.sends(i, ranks.add(true, to, kind::contribution, send + leaving.offset, leaving.bytes));
  }
  ranks.run([&] { return step(order, combined); });
  if (is_shared) std::memcpy(recv, out, bytes);
}

// Every rank combines a slice and hands it on while the rest of it still arrives: the sums hide behind the
// wire.
void reduce_two_shot(session& ranks, const isthmus_operation& operation, const block_map& blocks,
                     bool by_ring) {
  const auto* send = static_cast<const std::byte*>(operation.send_buf);
  auto* recv = static_cast<std::byte*>(operation.recv_buf);
  const int size = ranks.size(), rank = ranks.rank();
  constexpr std::uint64_t line = 64;
  const std::uint64_t bytes = operation.count * blocks.element_bytes;
  const std::uint64_t mean = (bytes + static_cast<std::uint64_t>(size) - 1) / static_cast<std::uint64_t>(size);
  const std::uint64_t slice = (mean + line - 1) / line * line;
  const auto begin_of = [&](int r) { return std::min(bytes, slice * static_cast<std::uint64_t>(r)); };
  const auto bytes_of_slice = [&](int r) { return begin_of(r + 1) - begin_of(r); };
  const bool takes = blocks.is_receiver(rank);
  // Who takes nothing has no room for its slice.
  std::byte* const out = takes ? recv + begin_of(rank) : ranks.scratch(bytes_of_slice(rank));
  turns order(ranks);
  combiner combined(ranks, operation, send + begin_of(rank), out, bytes_of_slice(rank), order);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    order.sends(i, ranks.add(true, to, kind::contribution, send + begin_of(to), bytes_of_slice(to)));
  }
  if (by_ring) {
    std::vector<block> at;
    for (int r = 0; r < size; ++r) at.push_back({begin_of(r), bytes_of_slice(r)});
    round_trip trip(ranks, kind::result, recv, at);
    return ranks.run([&] {
      const bool more = step(order, combined);
      return trip.step(combined.done()) || more;
    });
  }
  std::vector<flow*> results;
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size, from = (rank + size - i) % size;
    if (takes) ranks.add(false, from, kind::result, recv + begin_of(from), bytes_of_slice(from));
    if (!blocks.is_receiver(to)) continue;
    results.push_back(&ranks.add(true, to, kind::result, out, bytes_of_slice(rank)));
    results.back()->limit = 0;
  }
  ranks.run([&] {
    const bool more = step(order, combined);
    for (flow* each : results) each->limit = combined.done();
    return more;
  });
}

// All contributions to all in log2(size) steps, and everybody combines them.
void reduce_tree(session& ranks, const isthmus_operation& operation) {
  const auto size = static_cast<std::uint64_t>(ranks.size());
  const std::uint64_t bytes = operation.count * bytes_of(operation.datatype);
  std::byte* const all = ranks.scratch(bytes * size);
  std::memcpy(all + bytes * static_cast<std::uint64_t>(ranks.rank()), operation.send_buf, bytes);
  gather_by_doubling(ranks, all, bytes);
  std::vector<const void*> sources(size);
  for (std::uint64_t r = 0; r < size; ++r) sources[r] = all + bytes * r;
  ranks.kernels().reduce[operation.datatype][operation.op](operation.recv_buf, sources.data(), ranks.size(),
                                                           operation.count);
}

}  // namespace isthmus::ucx
