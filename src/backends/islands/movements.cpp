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
void gather_in_place(const subcommunicator& comm, isthmus_datatype datatype, std::byte* buffer, const spans& blocks,
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
  comm.run(operation);
}

void broadcast_in(const subcommunicator& comm, isthmus_datatype datatype, const std::byte* from, std::byte* to,
                  std::uint64_t count, int root) {
  isthmus_operation operation{};
  operation.collective = kinds::copy_to_all;
  operation.datatype = datatype;
  operation.count = count;
  operation.root = root;
  operation.send_buf = from;
  operation.recv_buf = to;
  if (count > 0) comm.run(operation);
}

// Every rank's block to every rank, by way of the holders.
class gathering {
 public:
  gathering(node_hierarchy& hierarchy, const isthmus_operation& asked)
      : m_hierarchy(ranks),
        m_layout(hierarchy.layout),
        m_asked(asked),
        m_blocks(asked, hierarchy.layout.rank(), hierarchy.layout.size()),
        m_width(bytes_of(asked.datatype)) {}

  void run();

 private:
  packed places(const chunk& of) const {
    return {m_layout, [&](int rank) { return length(rank, of); }};
  }
  std::uint64_t length(int rank, const chunk& of) const {
    const std::uint64_t all = m_blocks.recv.length(rank);
    return all <= of.at ? 0 : std::min(of.count, all - of.at);
  }
  std::byte* memory(const chunk& of) const {
    return m_hierarchy.sums[static_cast<std::size_t>(of.slot)].at_least(places(of).total() * m_width);
  }

  void to_leaders(const chunk& of) const;
  void inter_node(const chunk& of) const;
  void intra_node(const chunk& of) const;

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_asked;
  block_map m_blocks;
  std::uint64_t m_width;
};

void gathering::to_leaders(const chunk& of) const {
  const auto at = places(of);
  std::byte* const to = memory(of);
  const std::byte* const own = static_cast<const std::byte*>(m_asked.send_buf) + of.at * m_width;
  if (m_layout.is_leader()) {
    const piece mine = at.at(static_cast<std::size_t>(m_layout.position_of(m_layout.rank())));
    if (mine.count > 0) std::memcpy(to + mine.at * m_width, own, mine.count * m_width);
  }
  if (m_layout.own_node_size() == m_layout.leaders()) return;
  spans out, in;
  const auto& node = m_layout.members(m_layout.own_node());
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const int rank = node[static_cast<std::size_t>(index)];
    const bool gives = !m_layout.is_leader() && m_layout.leader_of(m_layout.rank()) == index;
    const bool takes = rank != m_layout.rank() && m_layout.is_leader() && m_layout.leader_of(rank) == m_layout.own_index();
    out.add(0, gives ? length(m_layout.rank(), of) : 0);
    in.add(at.at(static_cast<std::size_t>(m_layout.position_of(rank))).at, takes ? length(rank, of) : 0);
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
  m_hierarchy.comms.intra_node.run(operation);
}

void gathering::inter_node(const chunk& of) const {
  if (!m_layout.is_leader()) return;
  const auto at = places(of);
  const int own = m_layout.own_index();
  const piece served = at.of(m_layout.leader_range(own));
  if (served.count == 0) return;
  spans blocks;
  for (int node = 0; node < m_layout.nodes(); ++node) {
    const piece each = at.of(m_layout.leader_range(own, node));
    blocks.add(each.at - served.at, each.count);
  }
  gather_in_place(m_hierarchy.comms.inter_node, m_asked.datatype, memory(of) + served.at * m_width, blocks,
                  m_layout.own_node());
}

void gathering::intra_node(const chunk& of) const {
  const auto at = places(of);
  std::byte* const from = memory(of);
  spans blocks;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const piece each = index < m_layout.leaders() ? at.of(m_layout.leader_range(index)) : piece{};
    blocks.add(each.at, each.count);
  }
  gather_in_place(m_hierarchy.comms.intra_node, m_asked.datatype, from, blocks, m_layout.own_index());
  auto* const to = static_cast<std::byte*>(m_asked.recv_buf);
  for (std::size_t position = 0; position < m_layout.order().size(); ++position) {
    const int rank = m_layout.order()[position];
    const piece block = at.at(position);
    if (block.count > 0)
      std::memcpy(to + (m_blocks.recv.begin(rank) + of.at) * m_width, from + block.at * m_width,
                  block.count * m_width);
  }
}

void gathering::run() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_layout.size(); ++rank) longest = std::max(longest, m_blocks.recv.length(rank));
  const auto block = static_cast<std::uint64_t>(m_layout.size()) * m_width;
  stages work;
  work.gather = [this](const chunk& of) { to_leaders(of); };
  work.cross = [this](const chunk& of) { inter_node(of); };
  work.scatter = [this](const chunk& of) { intra_node(of); };
  m_hierarchy.run_in_chunks(longest, m_hierarchy.step(longest, block), work);
}

}  // namespace

void allgather_intra_node(const node_hierarchy& hierarchy, const shards& cuts, isthmus_datatype datatype, std::byte* buffer) {
  const rank_layout& layout = hierarchy.layout;
  if (cuts.each == 0)  // the first holder has it all
    return broadcast_in(hierarchy.comms.intra_node, datatype, buffer, buffer, cuts.rest, 0);
  gather_in_place(hierarchy.comms.intra_node, datatype, buffer, spans_of(cuts, all.own_node_size()), all.own_index());
}

void run_broadcast(node_hierarchy& hierarchy, const isthmus_operation& operation, cut how) {
  const rank_layout& layout = hierarchy.layout;
  const int node = all.node_of(operation.root);
  const bool is_there = all.own_node() == node;
  const std::uint64_t width = bytes_of(operation.datatype);
  const auto at = [&](const chunk& part) {
    return static_cast<std::byte*>(operation.recv_buf) + part.at * width;
  };
  const auto cuts = [&](const chunk& part) { return shards(part.count, all.leaders(), how); };
  stages work;
  work.gather = [&](const chunk& part) {
    const std::byte* const from = static_cast<const std::byte*>(operation.send_buf) + part.at * width;
    if (is_there)
      broadcast_in(hierarchy.comms.intra_node, operation.datatype, from, at(part), part.count,
                   all.index_of(operation.root));
  };
  work.cross = [&](const chunk& part) {
    if (!all.is_leader()) return;
    const piece own = cuts(part).of(all.own_index());
    std::byte* const buffer = at(part) + own.at * width;
    broadcast_in(hierarchy.comms.inter_node, operation.datatype, buffer, buffer, own.count, node);
  };
  work.scatter = [&](const chunk& part) {
    if (!is_there) allgather_intra_node(ranks, cuts(part), operation.datatype, at(part));
  };
  hierarchy.run_in_chunks(operation.count, hierarchy.step(operation.count, width), work);
}

void run_gathering(node_hierarchy& hierarchy, const isthmus_operation& operation) { gathering(ranks, operation).run(); }

void run_barrier(const node_hierarchy& hierarchy) {
  isthmus_operation operation{};
  operation.collective = kinds::meet;
  hierarchy.comms.intra_node.run(operation);
  if (hierarchy.layout.own_index() == 0) hierarchy.comms.inter_node.run(operation);
  hierarchy.comms.intra_node.run(operation);
}

}  // namespace isthmus::hierarchical
