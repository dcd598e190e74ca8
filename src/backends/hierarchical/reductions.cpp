#include <algorithm>
#include <cstring>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/convert.hpp"
#include "backends/hierarchical/phases.hpp"
#include "backends/hierarchical/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// A reduction of the whole, in terms of what its parts are asked for.
class reduction {
 public:
  reduction(node_hierarchy& hierarchy, const isthmus_operation& operation)
      : m_hierarchy(hierarchy),
        m_layout(hierarchy.layout),
        m_operation(operation),
        m_blocks(operation, hierarchy.layout.rank(), hierarchy.layout.size()),
        m_element_bytes(bytes_of(operation.datatype)),
        m_accumulation_type(accumulation_type(operation.datatype, operation.op)),
        m_accumulation_bytes(bytes_of(m_accumulation_type)) {}

  void to_all(shard_mode mode);
  void to_one(shard_mode mode);
  void to_each();

 private:
  bool is_widened() const { return m_accumulation_type != m_operation.datatype; }
  // Of all ranks' blocks, where each has `count` elements.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_accumulation_bytes);
  }
  const std::byte* send(std::uint64_t at) const {
    return static_cast<const std::byte*>(m_operation.send_buf) + at * m_element_bytes;
  }
  std::byte* recv(std::uint64_t at) const { return static_cast<std::byte*>(m_operation.recv_buf) + at * m_element_bytes; }
  std::byte* sums(const chunk_range& chunk, std::uint64_t count) const {
    return m_hierarchy.sums[static_cast<std::size_t>(chunk.slot)].reserve(count * m_accumulation_bytes);
  }
  std::byte* results(const chunk_range& chunk, std::uint64_t count) const {
    return m_hierarchy.results[static_cast<std::size_t>(chunk.slot)].reserve(count * m_element_bytes);
  }

  void sum(const subcommunicator& comm, isthmus_collective collective, const void* from, void* to, std::uint64_t count,
           int root = 0) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = m_accumulation_type;
    // The average is of the sum of all.
    operation.op = m_operation.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_operation.op;
    operation.count = count;
    operation.root = root;
    operation.send_buf = from;
    operation.recv_buf = to;
    if (count > 0) comm.run(operation);
  }

  // Each rank of the part gets the sums of its run of `in`, where that lies.
  void reduce_blocks(const subcommunicator& comm, std::byte* in, const block_counts& runs, int own_rank) const {
    reduce_blocks(comm, in, in, runs, own_rank);
  }
  // The same from `from` into the own run of `to`.
  void reduce_blocks(const subcommunicator& comm, const std::byte* from, std::byte* to, const block_counts& runs, int own_rank) const;

  // Sums of `from` over this island: each holder's shard at its place in `to`, which may be `from`.
  void reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const;
  // What is summed over all islands becomes what was asked for. `to` may be `from` where nothing is widened.
  void finish(std::byte* from, std::byte* to, std::uint64_t count) const {
    if (m_operation.op == ISTHMUS_AVG) mpi::divide(from, count, m_accumulation_type, m_layout.size());
    if (is_widened())
      narrow(from, m_operation.datatype, to, count);
    else if (from != to)
      std::memcpy(to, from, count * m_element_bytes);
  }

  // The steps of to_each.
  std::uint64_t length(int rank, const chunk_range& chunk) const {
    const std::uint64_t all = m_blocks.send.length(rank);
    return all <= chunk.begin ? 0 : std::min(chunk.count, all - chunk.begin);
  }
  void pack(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const;
  void reduce_to_leaders(const packed_blocks& blocks, std::byte* in) const;
  void reduce_inter_node(const packed_blocks& blocks, std::byte* in) const;
  void distribute(const packed_blocks& blocks, const chunk_range& chunk, std::byte* from) const;

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_operation;
  block_map m_blocks;
  std::uint64_t m_element_bytes;
  isthmus_datatype m_accumulation_type;
  std::uint64_t m_accumulation_bytes;
};

void reduction::reduce_blocks(const subcommunicator& comm, const std::byte* from, std::byte* to, const block_counts& runs,
                         int own_rank) const {
  if (std::ranges::all_of(runs.counts, [](std::uint64_t count) { return count == 0; })) return;
  const auto own = static_cast<std::size_t>(own_rank);
  isthmus_operation operation{};
  operation.collective = phase::reduce_scatterv;
  operation.datatype = m_accumulation_type;
  operation.op = m_operation.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_operation.op;
  operation.count = runs.counts[own];
  operation.send_buf = from;
  operation.recv_buf = to + runs.displs[own] * m_accumulation_bytes;
  operation.send_counts = runs.counts.data();
  operation.send_displs = runs.displs.data();
  comm.run(operation);
}

void reduction::reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const {
  const subcommunicator& node = m_hierarchy.comms.intra_node;
  const int own = m_layout.own_index();
  if (shards.shard_elements == 0 || m_layout.leaders() == 1)  // the first holder has it all
    return sum(node, phase::reduce, from, own == 0 ? to : nullptr, shards.shard(0).count);
  if (!m_layout.is_even() || shards.remainder > 0) return reduce_blocks(node, from, to, shard_counts(shards, m_layout.own_node_size()), own);
  sum(node, phase::reduce_scatter, from, to + static_cast<std::uint64_t>(own) * shards.shard_elements * m_accumulation_bytes,
      shards.shard_elements);
}

void reduction::to_all(shard_mode mode) {
  const auto shards = [this, mode](const chunk_range& chunk) { return shard_map(chunk.count, m_layout.leaders(), mode); };
  const auto summed = [this](const chunk_range& chunk) { return is_widened() ? sums(chunk, chunk.count) : recv(chunk.begin); };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const to = summed(chunk);
    if (is_widened()) widen(send(chunk.begin), m_operation.datatype, to, chunk.count);
    reduce_to_shards(shards(chunk), is_widened() ? to : send(chunk.begin), to);
  };
  work.cross = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    const element_range own = shards(chunk).shard(m_layout.own_index());
    std::byte* const at = summed(chunk) + own.begin * m_accumulation_bytes;
    sum(m_hierarchy.comms.inter_node, phase::allreduce, at, at, own.count);
    finish(at, recv(chunk.begin + own.begin), own.count);
  };
  work.scatter = [&](const chunk_range& chunk) { allgather_intra_node(m_hierarchy, shards(chunk), m_operation.datatype, recv(chunk.begin)); };
  m_hierarchy.run_in_chunks(m_operation.count, step(m_operation.count), work);
}

void reduction::to_one(shard_mode mode) {
  const auto shards = [this, mode](const chunk_range& chunk) { return shard_map(chunk.count, m_layout.leaders(), mode); };
  const int root_node = m_layout.node_of(m_operation.root);
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const to = sums(chunk, chunk.count);
    if (is_widened()) widen(send(chunk.begin), m_operation.datatype, to, chunk.count);
    reduce_to_shards(shards(chunk), is_widened() ? to : send(chunk.begin), to);
  };
  work.cross = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    const element_range own = shards(chunk).shard(m_layout.own_index());
    std::byte* const at = sums(chunk, chunk.count) + own.begin * m_accumulation_bytes;
    const bool takes = m_layout.own_node() == root_node;
    sum(m_hierarchy.comms.inter_node, phase::reduce, at, takes ? at : nullptr, own.count, root_node);
    if (takes) finish(at, results(chunk, chunk.count), own.count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    if (m_layout.own_node() != root_node) return;
    const block_counts blocks = shard_counts(shards(chunk), m_layout.own_node_size());
    isthmus_operation operation{};
    operation.collective = phase::gatherv;
    operation.datatype = m_operation.datatype;
    operation.root = m_layout.index_of(m_operation.root);
    operation.count = blocks.counts[static_cast<std::size_t>(m_layout.own_index())];
    operation.send_buf = results(chunk, chunk.count);
    operation.recv_buf = m_layout.rank() == m_operation.root ? recv(chunk.begin) : nullptr;
    operation.recv_counts = blocks.counts.data();
    operation.recv_displs = blocks.displs.data();
    m_hierarchy.comms.intra_node.run(operation);
  };
  m_hierarchy.run_in_chunks(m_operation.count, step(m_operation.count), work);
}

// Of every rank's block a chunk, in the order of the layout.
void reduction::pack(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const {
  for (std::size_t position = 0; position < m_layout.order().size(); ++position) {
    const element_range block = blocks.block(position);
    if (block.count == 0) continue;
    const std::byte* const from = send(m_blocks.send.begin(m_layout.order()[position]) + chunk.begin);
    std::byte* const at = to + block.begin * m_accumulation_bytes;
    if (is_widened())
      widen(from, m_operation.datatype, at, block.count);
    else
      std::memcpy(at, from, block.count * m_element_bytes);
  }
}

// Each holder gets the sums of what it serves.
void reduction::reduce_to_leaders(const packed_blocks& blocks, std::byte* in) const {
  const hierarchical::subcommunicator& node = m_hierarchy.comms.intra_node;
  const int own = m_layout.own_index();
  if (m_layout.is_even() && blocks.is_equal()) {
    const element_range mine = blocks.range(m_layout.leader_range(own));
    return sum(node, phase::reduce_scatter, in, in + mine.begin * m_accumulation_bytes, mine.count);
  }
  block_counts runs;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const element_range served = index < m_layout.leaders() ? blocks.range(m_layout.leader_range(index)) : element_range{};
    runs.add(served.begin, served.count);
  }
  reduce_blocks(node, in, runs, own);
}

void reduction::reduce_inter_node(const packed_blocks& blocks, std::byte* in) const {
  if (!m_layout.is_leader()) return;
  const int own = m_layout.own_index(), node = m_layout.own_node();
  const auto at = [&](element_range of) { return in + chunk.begin * m_accumulation_bytes; };
  const element_range mine = blocks.range(m_layout.leader_range(own, node));
  if (m_layout.is_even() && blocks.is_equal())
    return sum(m_hierarchy.comms.inter_node, phase::reduce_scatter, at(blocks.range(m_layout.leader_range(own))), at(mine),
               mine.count);
  block_counts runs;
  for (int each = 0; each < m_layout.nodes(); ++each) {
    const element_range served = blocks.range(m_layout.leader_range(own, each));
    runs.add(served.begin, served.count);
  }
  reduce_blocks(m_hierarchy.comms.inter_node, in, runs, node);
}

void reduction::distribute(const packed_blocks& blocks, const chunk_range& chunk, std::byte* from) const {
  const int own = m_layout.own_index();
  std::byte* made = recv(chunk.begin);
  if (m_layout.is_leader()) {
    const element_range served = blocks.range(m_layout.leader_range(own, m_layout.own_node()));
    if (!m_layout.is_even()) made = results(chunk, served.count);
    if (served.count > 0) finish(from + served.begin * m_accumulation_bytes, made, served.count);
  }
  if (m_layout.is_even()) return;
  block_counts out, in;
  std::uint64_t next = 0;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const int rank = m_layout.members(m_layout.own_node())[static_cast<std::size_t>(index)];
    const bool served = index % m_layout.leaders() == own, serves = own % m_layout.leaders() == index;
    out.add(next, served ? length(rank, chunk) : 0);
    in.add(0, serves ? length(m_layout.rank(), chunk) : 0);
    next += out.counts.back();
  }
  isthmus_operation operation{};
  operation.collective = phase::alltoallv;
  operation.datatype = m_operation.datatype;
  operation.send_buf = m_layout.is_leader() ? made : nullptr;
  operation.recv_buf = recv(chunk.begin);
  operation.send_counts = out.counts.data();
  operation.send_displs = out.displs.data();
  operation.recv_counts = in.counts.data();
  operation.recv_displs = in.displs.data();
  m_hierarchy.comms.intra_node.run(operation);
}

void reduction::to_each() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_layout.size(); ++rank) longest = std::max(longest, m_blocks.send.length(rank));
  const auto blocks = [this](const chunk_range& chunk) {
    return packed_blocks(m_layout, [&](int rank) { return length(rank, chunk); });
  };
  const auto memory = [this](const chunk_range& chunk, const packed& of) { return sums(chunk, of.total()); };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    const packed of = blocks(chunk);
    pack(of, chunk, memory(chunk, of));
    reduce_to_leaders(of, memory(chunk, of));
  };
  work.cross = [&](const chunk_range& chunk) {
    const packed of = blocks(chunk);
    reduce_inter_node(of, memory(chunk, of));
  };
  work.scatter = [&](const chunk_range& chunk) {
    const packed of = blocks(chunk);
    distribute(of, chunk, memory(chunk, of));
  };
  m_hierarchy.run_in_chunks(longest, step(longest, static_cast<std::uint64_t>(m_layout.size())), work);
}

}  // namespace

void run_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  if (hierarchy.device) return run_device_reduction(hierarchy, operation, mode);
  const collective_row& row = row_of(operation.collective);
  reduction operation(hierarchy, operation);
  if (row.send_extent != extent::count) return operation.to_each();
  if (row.recv_ranks == buffer_ranks::root) return operation.to_one(mode);
  operation.to_all(mode);
}

}  // namespace isthmus::hierarchical
