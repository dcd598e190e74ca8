// A reduction on a rank whose island sums on its device: the sums that this rank holds go to the host, between
// islands there, and back. Ranks of islands on the host do the same by reductions.cpp; the chunks and what
// crosses are equal.
#include <algorithm>

#include "backends/islands/composer.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

class device_reduction {
 public:
  device_reduction(node_hierarchy& hierarchy, const isthmus_operation& asked, cut how)
      : m_hierarchy(ranks),
        m_layout(hierarchy.layout),
        m_asked(asked),
        m_device(*hierarchy.device),
        m_how(how),
        m_width(bytes_of(asked.datatype)) {}

  void to_all();
  void to_one();
  void to_each();

 private:
  // Of all ranks' blocks, where each has `count` elements.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_width);
  }
  const std::byte* send(std::uint64_t at) const {
    return static_cast<const std::byte*>(m_asked.send_buf) + at * m_width;
  }
  std::byte* recv(std::uint64_t at) const { return static_cast<std::byte*>(m_asked.recv_buf) + at * m_width; }
  shards cuts(const chunk& part) const { return {part.count, m_layout.leaders(), m_how}; }
  piece own(const chunk& part) const { return cuts(part).of(m_layout.own_index()); }
  void reserve(std::uint64_t scratch_elements, std::uint64_t pinned_elements) const {
    m_device.reserve(scratch_elements * m_width, pinned_elements * m_width);
  }

  isthmus_operation call(isthmus_collective collective, const std::byte* from, std::byte* to,
                         std::uint64_t count, int root) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = m_asked.datatype;
    // The average is of the sum of all.
    operation.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
    operation.count = count;
    operation.root = root;
    operation.send_buf = from;
    operation.recv_buf = to;
    return operation;
  }
  void intra_node(isthmus_collective collective, const std::byte* from, std::byte* to, std::uint64_t count,
              int root = 0) const {
    isthmus_operation operation = call(collective, from, to, count, root);
    operation.stream = m_device.stream();
    if (count > 0) m_hierarchy.comms.intra_node.run(operation);
  }
  void inter_node(isthmus_collective collective, const std::byte* from, std::byte* to, std::uint64_t count,
               int root = 0) const {
    if (count > 0) m_hierarchy.comms.inter_node.run(call(collective, from, to, count, root));
  }
  void divide(std::byte* sums, std::uint64_t count) const {
    if (m_asked.op == ISTHMUS_AVG) mpi::divide(sums, count, m_asked.datatype, m_layout.size());
  }

  void sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const;
  void share(const shards& cuts, std::byte* buffer) const;
  void fetch_own(const chunk& part, const std::byte* sums) const {
    if (m_layout.is_leader()) m_device.fetch(part.slot, sums + own(part).at * m_width, own(part).count * m_width);
  }
  void bring_own(const chunk& part, std::byte* results) const {
    if (m_layout.is_leader())
      m_device.bring(results + own(part).at * m_width, m_device.pinned(part.slot), own(part).count * m_width);
  }
  void run_in_chunks(std::uint64_t count, std::uint64_t step, const stages& work) const {
    m_hierarchy.run_in_chunks(count, step, work);
    m_device.finish();
  }

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_asked;
  device_side& m_device;
  cut m_how;
  std::uint64_t m_width;
};

// Each holder gets the sums of its shard, where they lie in `to`; others may get more.
void device_reduction::sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const {
  if (!spreads_evenly(m_layout, cuts)) return intra_node(kinds::sum_to_all, from, to, cuts.total());
  const std::uint64_t rest = cuts.rest * m_width;
  const std::uint64_t mine = static_cast<std::uint64_t>(m_layout.own_index()) * cuts.each * m_width;
  intra_node(kinds::sum_to_all, from, to, cuts.rest);
  intra_node(kinds::sum_to_each, from + rest, to + rest + mine, cuts.each);
}

void device_reduction::share(const shards& cuts, std::byte* buffer) const {
  if (!spreads_evenly(m_layout, cuts)) {
    for (int leader = 0; leader < m_layout.leaders(); ++leader) {
      std::byte* const shard = buffer + cuts.of(leader).at * m_width;
      intra_node(kinds::copy_to_all, shard, shard, cuts.of(leader).count, leader);
    }
    return;
  }
  std::byte* const even = buffer + cuts.rest * m_width;
  intra_node(kinds::copy_to_all, buffer, buffer, cuts.rest);
  intra_node(kinds::blocks_to_all, even + static_cast<std::uint64_t>(m_layout.own_index()) * cuts.each * m_width, even,
         cuts.each);
}

void device_reduction::to_all() {
  stages work;
  work.gather = [&](const chunk& part) {
    sum_shards(cuts(part), send(part.at), recv(part.at));
    fetch_own(part, recv(part.at));
  };
  work.cross = [&](const chunk& part) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(part.slot);
    inter_node(kinds::sum_to_all, sums, sums, own(part).count);
    divide(sums, own(part).count);
  };
  work.scatter = [&](const chunk& part) {
    bring_own(part, recv(part.at));
    share(cuts(part), recv(part.at));
  };
  const std::uint64_t most = std::min(step(m_asked.count), m_asked.count);
  reserve(0, most);
  run_in_chunks(m_asked.count, step(m_asked.count), work);
}

void device_reduction::to_one() {
  const int root_node = m_layout.node_of(m_asked.root);
  const bool takes = m_layout.own_node() == root_node;
  stages work;
  work.gather = [&](const chunk& part) {
    sum_shards(cuts(part), send(part.at), m_device.scratch(part.slot));
    fetch_own(part, m_device.scratch(part.slot));
  };
  work.cross = [&](const chunk& part) {
    if (!m_layout.is_leader()) return;
    std::byte* const sums = m_device.pinned(part.slot);
    inter_node(kinds::sum_to_one, sums, takes ? sums : nullptr, own(part).count, root_node);
    if (takes) divide(sums, own(part).count);
  };
  work.scatter = [&](const chunk& part) {
    if (!takes) return;
    std::byte* const results = m_device.scratch(part.slot);
    bring_own(part, results);
    share(cuts(part), results);
    if (m_layout.rank() == m_asked.root) m_device.move(recv(part.at), results, part.count * m_width);
  };
  const std::uint64_t most = std::min(step(m_asked.count), m_asked.count);
  reserve(most, most);
  run_in_chunks(m_asked.count, step(m_asked.count), work);
}

// Islands are even, and blocks equal.
void device_reduction::to_each() {
  const block_map blocks(m_asked, m_layout.rank(), m_layout.size());
  const auto served = [&](const chunk& part) {
    return static_cast<std::uint64_t>(m_layout.nodes()) * part.count;
  };
  const auto own_block = [&](const chunk& part) {
    return m_device.pinned(part.slot) + static_cast<std::uint64_t>(m_layout.own_node()) * part.count * m_width;
  };
  stages work;
  work.gather = [&](const chunk& part) {
    std::byte* const packed = m_device.scratch(part.slot);
    std::byte* to = packed;
    for (const int rank : m_layout.order()) {
      m_device.move(to, send(blocks.send.begin(rank) + part.at), part.count * m_width);
      to += part.count * m_width;
    }
    std::byte* const mine = packed + static_cast<std::uint64_t>(m_layout.own_index()) * served(part) * m_width;
    intra_node(kinds::sum_to_each, packed, mine, served(part));
    m_device.fetch(part.slot, mine, served(part) * m_width);
  };
  work.cross = [&](const chunk& part) {
    inter_node(kinds::sum_to_each, m_device.pinned(part.slot), own_block(part), part.count);
    divide(own_block(part), part.count);
  };
  work.scatter = [&](const chunk& part) {
    m_device.bring(recv(part.at), own_block(part), part.count * m_width);
  };
  const auto ranks = static_cast<std::uint64_t>(m_layout.size());
  const std::uint64_t most = std::min(step(m_asked.count, ranks), m_asked.count);
  reserve(most * ranks, most * static_cast<std::uint64_t>(m_layout.nodes()));
  run_in_chunks(m_asked.count, step(m_asked.count, ranks), work);
}

}  // namespace

void run_device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, cut how) {
  const collective_row& row = row_of(operation.collective);
  device_reduction asked(ranks, operation, how);
  if (row.send_extent != extent::count) return asked.to_each();
  if (row.recv_ranks == buffer_ranks::root) return asked.to_one();
  asked.to_all();
}

}  // namespace isthmus::hierarchical
