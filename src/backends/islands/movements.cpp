#include <algorithm>
#include <cstring>

#include "backends/islands/composer.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// `buffer` gets every rank's block, and has this one's already.
void gather_in_place(const part& by, isthmus_datatype datatype, std::byte* buffer, const spans& blocks,
                     int own_rank) {
  const auto own = static_cast<std::size_t>(own_rank);
  isthmus_operation operation{};
  operation.datatype = datatype;
  operation.count = blocks.counts[own];
  operation.send_buf = buffer + blocks.displs[own] * bytes_of(datatype);
  operation.recv_buf = buffer;
  const bool equal = std::ranges::all_of(blocks.counts, [&](auto count) { return count == operation.count; });
  operation.collective = equal ? kinds::blocks_to_all : kinds::runs_to_all;
  if (!equal) {
    operation.recv_counts = blocks.counts.data();
    operation.recv_displs = blocks.displs.data();
  }
  by.run(operation);
}

void broadcast_in(const part& by, isthmus_datatype datatype, const std::byte* from, std::byte* to,
                  std::uint64_t count, int root) {
  isthmus_operation operation{};
  operation.collective = kinds::copy_to_all;
  operation.datatype = datatype;
  operation.count = count;
  operation.root = root;
  operation.send_buf = from;
  operation.recv_buf = to;
  if (count > 0) by.run(operation);
}

// Every rank's block to every rank, by way of the holders.
class gathering {
 public:
  gathering(crew& ranks, const isthmus_operation& asked)
      : m_ranks(ranks),
        m_all(ranks.ranks),
        m_asked(asked),
        m_blocks(asked, ranks.ranks.rank(), ranks.ranks.size()),
        m_width(bytes_of(asked.datatype)) {}

  void run();

 private:
  packed places(const chunk& of) const {
    return {m_all, [&](int rank) { return length(rank, of); }};
  }
  std::uint64_t length(int rank, const chunk& of) const {
    const std::uint64_t all = m_blocks.recv.length(rank);
    return all <= of.at ? 0 : std::min(of.count, all - of.at);
  }
  std::byte* memory(const chunk& of) const {
    return m_ranks.sums[static_cast<std::size_t>(of.slot)].at_least(places(of).total() * m_width);
  }

  void to_holders(const chunk& of) const;
  void between(const chunk& of) const;
  void within(const chunk& of) const;

  crew& m_ranks;
  const layout& m_all;
  const isthmus_operation& m_asked;
  block_map m_blocks;
  std::uint64_t m_width;
};

void gathering::to_holders(const chunk& of) const {
  const auto at = places(of);
  std::byte* const to = memory(of);
  const std::byte* const own = static_cast<const std::byte*>(m_asked.send_buf) + of.at * m_width;
  if (m_all.holds()) {
    const piece mine = at.at(static_cast<std::size_t>(m_all.place_of(m_all.rank())));
    if (mine.count > 0) std::memcpy(to + mine.at * m_width, own, mine.count * m_width);
  }
  if (m_all.own_ranks() == m_all.holders()) return;
  spans out, in;
  const auto& node = m_all.members(m_all.own_island());
  for (int index = 0; index < m_all.own_ranks(); ++index) {
    const int rank = node[static_cast<std::size_t>(index)];
    const bool gives = !m_all.holds() && m_all.holder_of(m_all.rank()) == index;
    const bool takes = rank != m_all.rank() && m_all.holds() && m_all.holder_of(rank) == m_all.own_index();
    out.add(0, gives ? length(m_all.rank(), of) : 0);
    in.add(at.at(static_cast<std::size_t>(m_all.place_of(rank))).at, takes ? length(rank, of) : 0);
  }
  isthmus_operation operation{};
  operation.collective = kinds::runs_to_each;
  operation.datatype = m_asked.datatype;
  operation.send_buf = own;
  operation.recv_buf = to;
  operation.send_counts = out.counts.data();
  operation.send_displs = out.displs.data();
  operation.recv_counts = in.counts.data();
  operation.recv_displs = in.displs.data();
  m_ranks.of.within.run(operation);
}

void gathering::between(const chunk& of) const {
  if (!m_all.holds()) return;
  const auto at = places(of);
  const int own = m_all.own_index();
  const piece served = at.of(m_all.served_by(own));
  if (served.count == 0) return;
  spans blocks;
  for (int node = 0; node < m_all.nodes(); ++node) {
    const piece each = at.of(m_all.served_by(own, node));
    blocks.add(each.at - served.at, each.count);
  }
  gather_in_place(m_ranks.of.between, m_asked.datatype, memory(of) + served.at * m_width, blocks,
                  m_all.own_island());
}

void gathering::within(const chunk& of) const {
  const auto at = places(of);
  std::byte* const from = memory(of);
  spans blocks;
  for (int index = 0; index < m_all.own_ranks(); ++index) {
    const piece each = index < m_all.holders() ? at.of(m_all.served_by(index)) : piece{};
    blocks.add(each.at, each.count);
  }
  gather_in_place(m_ranks.of.within, m_asked.datatype, from, blocks, m_all.own_index());
  auto* const to = static_cast<std::byte*>(m_asked.recv_buf);
  for (std::size_t place = 0; place < m_all.order().size(); ++place) {
    const int rank = m_all.order()[place];
    const piece block = at.at(place);
    if (block.count > 0)
      std::memcpy(to + (m_blocks.recv.begin(rank) + of.at) * m_width, from + block.at * m_width,
                  block.count * m_width);
  }
}

void gathering::run() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_all.size(); ++rank) longest = std::max(longest, m_blocks.recv.length(rank));
  const auto block = static_cast<std::uint64_t>(m_all.size()) * m_width;
  stages work;
  work.gather = [this](const chunk& of) { to_holders(of); };
  work.cross = [this](const chunk& of) { between(of); };
  work.scatter = [this](const chunk& of) { within(of); };
  m_ranks.run_in_chunks(longest, m_ranks.step(longest, block), work);
}

}  // namespace

void share_within(const crew& ranks, const shards& cuts, isthmus_datatype datatype, std::byte* buffer) {
  const layout& all = ranks.ranks;
  if (cuts.each == 0)  // the first holder has it all
    return broadcast_in(ranks.of.within, datatype, buffer, buffer, cuts.rest, 0);
  gather_in_place(ranks.of.within, datatype, buffer, spans_of(cuts, all.own_ranks()), all.own_index());
}

void run_broadcast(crew& ranks, const isthmus_operation& operation, cut how) {
  const layout& all = ranks.ranks;
  const int node = all.island_of(operation.root);
  const bool is_there = all.own_island() == node;
  const std::uint64_t width = bytes_of(operation.datatype);
  const auto at = [&](const chunk& part) {
    return static_cast<std::byte*>(operation.recv_buf) + part.at * width;
  };
  const auto cuts = [&](const chunk& part) { return shards(part.count, all.holders(), how); };
  stages work;
  work.gather = [&](const chunk& part) {
    const std::byte* const from = static_cast<const std::byte*>(operation.send_buf) + part.at * width;
    if (is_there)
      broadcast_in(ranks.of.within, operation.datatype, from, at(part), part.count,
                   all.index_of(operation.root));
  };
  work.cross = [&](const chunk& part) {
    if (!all.holds()) return;
    const piece own = cuts(part).of(all.own_index());
    std::byte* const buffer = at(part) + own.at * width;
    broadcast_in(ranks.of.between, operation.datatype, buffer, buffer, own.count, node);
  };
  work.scatter = [&](const chunk& part) {
    if (!is_there) share_within(ranks, cuts(part), operation.datatype, at(part));
  };
  ranks.run_in_chunks(operation.count, ranks.step(operation.count, width), work);
}

void run_gathering(crew& ranks, const isthmus_operation& operation) { gathering(ranks, operation).run(); }

void run_barrier(const crew& ranks) {
  isthmus_operation operation{};
  operation.collective = kinds::meet;
  ranks.of.within.run(operation);
  if (ranks.ranks.own_index() == 0) ranks.of.between.run(operation);
  ranks.of.within.run(operation);
}

}  // namespace isthmus::hierarchical
