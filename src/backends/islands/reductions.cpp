#include <algorithm>
#include <cstring>

#include "backends/islands/composer.hpp"
#include "backends/islands/convert.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// A reduction of the whole, in terms of what its parts are asked for.
class reduction {
 public:
  reduction(node_hierarchy& hierarchy, const isthmus_operation& asked)
      : m_hierarchy(ranks),
        m_layout(hierarchy.layout),
        m_asked(asked),
        m_blocks(asked, hierarchy.layout.rank(), hierarchy.layout.size()),
        m_width(bytes_of(asked.datatype)),
        m_sum_type(accumulation_type(asked.datatype, asked.op)),
        m_sum_width(bytes_of(m_sum_type)) {}

  void to_all(cut how);
  void to_one(cut how);
  void to_each();

 private:
  bool widens() const { return m_sum_type != m_asked.datatype; }
  // Of all ranks' blocks, where each has `count` elements.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_sum_width);
  }
  const std::byte* send(std::uint64_t at) const {
    return static_cast<const std::byte*>(m_asked.send_buf) + at * m_width;
  }
  std::byte* recv(std::uint64_t at) const { return static_cast<std::byte*>(m_asked.recv_buf) + at * m_width; }
  std::byte* sums(const chunk& of, std::uint64_t count) const {
    return m_hierarchy.sums[static_cast<std::size_t>(of.slot)].at_least(count * m_sum_width);
  }
  std::byte* results(const chunk& of, std::uint64_t count) const {
    return m_hierarchy.results[static_cast<std::size_t>(of.slot)].at_least(count * m_width);
  }

  void sum(const subcommunicator& comm, isthmus_collective collective, const void* from, void* to, std::uint64_t count,
           int root = 0) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = m_sum_type;
    // The average is of the sum of all.
    operation.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
    operation.count = count;
    operation.root = root;
    operation.send_buf = from;
    operation.recv_buf = to;
    if (count > 0) comm.run(operation);
  }

  // Each rank of the part gets the sums of its run of `in`, where that lies.
  void sum_runs(const subcommunicator& comm, std::byte* in, const spans& runs, int own_rank) const {
    sum_runs(comm, in, in, runs, own_rank);
  }
  // The same from `from` into the own run of `to`.
  void sum_runs(const subcommunicator& comm, const std::byte* from, std::byte* to, const spans& runs, int own_rank) const;

  // Sums of `from` over this island: each holder's shard at its place in `to`, which may be `from`.
  void sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const;
  // What is summed over all islands becomes what was asked for. `to` may be `from` where nothing is widened.
  void finish(std::byte* from, std::byte* to, std::uint64_t count) const {
    if (m_asked.op == ISTHMUS_AVG) mpi::divide(from, count, m_sum_type, m_layout.size());
    if (widens())
      narrow(from, m_asked.datatype, to, count);
    else if (from != to)
      std::memcpy(to, from, count * m_width);
  }

  // The steps of to_each.
  std::uint64_t length(int rank, const chunk& of) const {
    const std::uint64_t all = m_blocks.send.length(rank);
    return all <= of.at ? 0 : std::min(of.count, all - of.at);
  }
  void pack(const packed& blocks, const chunk& part, std::byte* to) const;
  void reduce_to_leaders(const packed& blocks, std::byte* in) const;
  void reduce_inter_node(const packed& blocks, std::byte* in) const;
  void hand_out(const packed& blocks, const chunk& part, std::byte* from) const;

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_asked;
  block_map m_blocks;
  std::uint64_t m_width;
  isthmus_datatype m_sum_type;
  std::uint64_t m_sum_width;
};

void reduction::sum_runs(const subcommunicator& comm, const std::byte* from, std::byte* to, const spans& runs,
                         int own_rank) const {
  if (std::ranges::all_of(runs.counts, [](std::uint64_t count) { return count == 0; })) return;
  const auto own = static_cast<std::size_t>(own_rank);
  isthmus_operation operation{};
  operation.collective = kinds::sum_to_each_run;
  operation.datatype = m_sum_type;
  operation.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
  operation.count = runs.counts[own];
  operation.send_buf = from;
  operation.recv_buf = to + runs.displs[own] * m_sum_width;
  operation.send_counts = runs.counts.data();
  operation.send_displs = runs.displs.data();
  comm.run(operation);
}

void reduction::sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const {
  const subcommunicator& node = m_hierarchy.comms.intra_node;
  const int own = m_layout.own_index();
  if (cuts.each == 0 || m_layout.leaders() == 1)  // the first holder has it all
    return sum(node, kinds::sum_to_one, from, own == 0 ? to : nullptr, cuts.of(0).count);
  if (!m_layout.is_even() || cuts.rest > 0) return sum_runs(node, from, to, spans_of(cuts, m_layout.own_node_size()), own);
  sum(node, kinds::sum_to_each, from, to + static_cast<std::uint64_t>(own) * cuts.each * m_sum_width,
      cuts.each);
}

void reduction::to_all(cut how) {
  const auto cuts = [this, how](const chunk& part) { return shards(part.count, m_layout.leaders(), how); };
  const auto summed = [this](const chunk& part) { return widens() ? sums(part, part.count) : recv(part.at); };
  stages work;
  work.gather = [&](const chunk& part) {
    std::byte* const to = summed(part);
    if (widens()) widen(send(part.at), m_asked.datatype, to, part.count);
    sum_shards(cuts(part), widens() ? to : send(part.at), to);
  };
  work.cross = [&](const chunk& part) {
    if (!m_layout.is_leader()) return;
    const piece own = cuts(part).of(m_layout.own_index());
    std::byte* const at = summed(part) + own.at * m_sum_width;
    sum(m_hierarchy.comms.inter_node, kinds::sum_to_all, at, at, own.count);
    finish(at, recv(part.at + own.at), own.count);
  };
  work.scatter = [&](const chunk& part) { allgather_intra_node(m_hierarchy, cuts(part), m_asked.datatype, recv(part.at)); };
  m_hierarchy.run_in_chunks(m_asked.count, step(m_asked.count), work);
}

void reduction::to_one(cut how) {
  const auto cuts = [this, how](const chunk& part) { return shards(part.count, m_layout.leaders(), how); };
  const int root_node = m_layout.node_of(m_asked.root);
  stages work;
  work.gather = [&](const chunk& part) {
    std::byte* const to = sums(part, part.count);
    if (widens()) widen(send(part.at), m_asked.datatype, to, part.count);
    sum_shards(cuts(part), widens() ? to : send(part.at), to);
  };
  work.cross = [&](const chunk& part) {
    if (!m_layout.is_leader()) return;
    const piece own = cuts(part).of(m_layout.own_index());
    std::byte* const at = sums(part, part.count) + own.at * m_sum_width;
    const bool takes = m_layout.own_node() == root_node;
    sum(m_hierarchy.comms.inter_node, kinds::sum_to_one, at, takes ? at : nullptr, own.count, root_node);
    if (takes) finish(at, results(part, part.count), own.count);
  };
  work.scatter = [&](const chunk& part) {
    if (m_layout.own_node() != root_node) return;
    const spans blocks = spans_of(cuts(part), m_layout.own_node_size());
    isthmus_operation operation{};
    operation.collective = kinds::runs_to_one;
    operation.datatype = m_asked.datatype;
    operation.root = m_layout.index_of(m_asked.root);
    operation.count = blocks.counts[static_cast<std::size_t>(m_layout.own_index())];
    operation.send_buf = results(part, part.count);
    operation.recv_buf = m_layout.rank() == m_asked.root ? recv(part.at) : nullptr;
    operation.recv_counts = blocks.counts.data();
    operation.recv_displs = blocks.displs.data();
    m_hierarchy.comms.intra_node.run(operation);
  };
  m_hierarchy.run_in_chunks(m_asked.count, step(m_asked.count), work);
}

// Of every rank's block a chunk, in the order of the layout.
void reduction::pack(const packed& blocks, const chunk& part, std::byte* to) const {
  for (std::size_t position = 0; position < m_layout.order().size(); ++position) {
    const piece block = blocks.at(position);
    if (block.count == 0) continue;
    const std::byte* const from = send(m_blocks.send.begin(m_layout.order()[position]) + part.at);
    std::byte* const at = to + block.at * m_sum_width;
    if (widens())
      widen(from, m_asked.datatype, at, block.count);
    else
      std::memcpy(at, from, block.count * m_width);
  }
}

// Each holder gets the sums of what it serves.
void reduction::reduce_to_leaders(const packed& blocks, std::byte* in) const {
  const hierarchical::subcommunicator& node = m_hierarchy.comms.intra_node;
  const int own = m_layout.own_index();
  if (m_layout.is_even() && blocks.is_equal()) {
    const piece mine = blocks.of(m_layout.leader_range(own));
    return sum(node, kinds::sum_to_each, in, in + mine.at * m_sum_width, mine.count);
  }
  spans runs;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const piece served = index < m_layout.leaders() ? blocks.of(m_layout.leader_range(index)) : piece{};
    runs.add(served.at, served.count);
  }
  sum_runs(node, in, runs, own);
}

void reduction::reduce_inter_node(const packed& blocks, std::byte* in) const {
  if (!m_layout.is_leader()) return;
  const int own = m_layout.own_index(), node = m_layout.own_node();
  const auto at = [&](piece of) { return in + of.at * m_sum_width; };
  const piece mine = blocks.of(m_layout.leader_range(own, node));
  if (m_layout.is_even() && blocks.is_equal())
    return sum(m_hierarchy.comms.inter_node, kinds::sum_to_each, at(blocks.of(m_layout.leader_range(own))), at(mine),
               mine.count);
  spans runs;
  for (int each = 0; each < m_layout.nodes(); ++each) {
    const piece served = blocks.of(m_layout.leader_range(own, each));
    runs.add(served.at, served.count);
  }
  sum_runs(m_hierarchy.comms.inter_node, in, runs, node);
}

void reduction::hand_out(const packed& blocks, const chunk& part, std::byte* from) const {
  const int own = m_layout.own_index();
  std::byte* made = recv(part.at);
  if (m_layout.is_leader()) {
    const piece served = blocks.of(m_layout.leader_range(own, m_layout.own_node()));
    if (!m_layout.is_even()) made = results(part, served.count);
    if (served.count > 0) finish(from + served.at * m_sum_width, made, served.count);
  }
  if (m_layout.is_even()) return;
  spans out, in;
  std::uint64_t next = 0;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const int rank = m_layout.members(m_layout.own_node())[static_cast<std::size_t>(index)];
    const bool served = index % m_layout.leaders() == own, serves = own % m_layout.leaders() == index;
    out.add(next, served ? length(rank, part) : 0);
    in.add(0, serves ? length(m_layout.rank(), part) : 0);
    next += out.counts.back();
  }
  isthmus_operation operation{};
  operation.collective = kinds::runs_to_each;
  operation.datatype = m_asked.datatype;
  operation.send_buf = m_layout.is_leader() ? made : nullptr;
  operation.recv_buf = recv(part.at);
  operation.send_counts = out.counts.data();
  operation.send_displs = out.displs.data();
  operation.recv_counts = in.counts.data();
  operation.recv_displs = in.displs.data();
  m_hierarchy.comms.intra_node.run(operation);
}

void reduction::to_each() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_layout.size(); ++rank) longest = std::max(longest, m_blocks.send.length(rank));
  const auto blocks = [this](const chunk& part) {
    return packed(m_layout, [&](int rank) { return length(rank, part); });
  };
  const auto memory = [this](const chunk& part, const packed& of) { return sums(part, of.total()); };
  stages work;
  work.gather = [&](const chunk& part) {
    const packed of = blocks(part);
    pack(of, part, memory(part, of));
    reduce_to_leaders(of, memory(part, of));
  };
  work.cross = [&](const chunk& part) {
    const packed of = blocks(part);
    reduce_inter_node(of, memory(part, of));
  };
  work.scatter = [&](const chunk& part) {
    const packed of = blocks(part);
    hand_out(of, part, memory(part, of));
  };
  m_hierarchy.run_in_chunks(longest, step(longest, static_cast<std::uint64_t>(m_layout.size())), work);
}

}  // namespace

void run_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, cut how) {
  if (hierarchy.device) return run_device_reduction(ranks, operation, how);
  const collective_row& row = row_of(operation.collective);
  reduction asked(ranks, operation);
  if (row.send_extent != extent::count) return asked.to_each();
  if (row.recv_ranks == buffer_ranks::root) return asked.to_one(how);
  asked.to_all(how);
}

}  // namespace isthmus::hierarchical
