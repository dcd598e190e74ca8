#include <algorithm>
#include <cstring>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/block_map.hpp"
#include "base/elements.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// A reduction, composed of collectives of the subcommunicators.
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

  void run_allreduce(shard_mode mode);
  void run_reduce(shard_mode mode);
  void run_reduce_scatter();

 private:
  bool is_widened() const { return m_accumulation_type != m_operation.datatype; }
  // Returns the number of elements of each block that one chunk contains. `count`: elements per block.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_hierarchy.step(count, blocks * m_accumulation_bytes);
  }
  const std::byte* send(std::uint64_t begin) const {
    return static_cast<const std::byte*>(m_operation.send_buf) + begin * m_element_bytes;
  }
  std::byte* recv(std::uint64_t begin) const {
    return static_cast<std::byte*>(m_operation.recv_buf) + begin * m_element_bytes;
  }
  std::byte* sums(const chunk_range& chunk, std::uint64_t count) const {
    return m_hierarchy.sums[static_cast<std::size_t>(chunk.slot)].reserve(count * m_accumulation_bytes);
  }
  std::byte* results(const chunk_range& chunk, std::uint64_t count) const {
    return m_hierarchy.results[static_cast<std::size_t>(chunk.slot)].reserve(count * m_element_bytes);
  }

  void sum(const subcommunicator& comm, isthmus_collective collective, const void* from, void* to,
           std::uint64_t count, int root = 0) const {
    if (count > 0)
      comm.run(
          make_operation(collective, m_accumulation_type, from, to, count, root, partial_op(m_operation.op)));
  }

  // Reduces the blocks of all ranks of `comm` in `from`, and writes the sums of this rank's block to `to`.
  void reduce_blocks(const subcommunicator& comm, const std::byte* from, std::byte* to,
                     const block_counts& blocks, int own_rank) const;

  // Reduces `from` over the node. Each leader gets its shard at the position of the shard in `to`, which may be
  // equal to `from`.
  void reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const;
  // Converts the total over all nodes to the result: divides it (for an average) and narrows it. `to` may be
  // equal to `from` unless the data was widened.
  void finish(std::byte* from, std::byte* to, std::uint64_t count) const {
    if (m_operation.op == ISTHMUS_AVG) isthmus::divide(from, count, m_accumulation_type, m_layout.size());
    if (is_widened())
      narrow(from, m_operation.datatype, to, count);
    else if (from != to)
      std::memcpy(to, from, count * m_element_bytes);
  }

  // The steps of run_reduce_scatter().
  std::uint64_t length(int rank, const chunk_range& chunk) const {
    const std::uint64_t all = m_blocks.send.length(rank);
    return all <= chunk.begin ? 0 : std::min(chunk.count, all - chunk.begin);
  }
  void widen_blocks(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const;
  void reduce_to_leaders(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const;
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

void reduction::reduce_blocks(const subcommunicator& comm, const std::byte* from, std::byte* to,
                              const block_counts& blocks, int own_rank) const {
  if (blocks.is_empty()) return;
  if (blocks.is_uniform())
    return sum(comm, reduce_scatter_phase, from + blocks.displs[0] * m_accumulation_bytes, to,
               blocks.counts[0]);
  isthmus_operation operation =
      make_operation(reduce_scatterv_phase, m_accumulation_type, from, to,
                     blocks.counts[static_cast<std::size_t>(own_rank)], 0, partial_op(m_operation.op));
  operation.send_counts = blocks.counts.data();
  operation.send_displs = blocks.displs.data();
  comm.run(operation);
}

void reduction::reduce_to_shards(const shard_map& shards, const std::byte* from, std::byte* to) const {
  const subcommunicator& node = m_hierarchy.comms.intra_node;
  const int own = m_layout.own_index();
  if (shards.shard_elements == 0 || m_layout.leaders() == 1)  // the first leader gets the whole message
    return sum(node, reduce_phase, from, own == 0 ? to : nullptr, shards.shard(0).count);
  reduce_blocks(node, from, to + shards.shard(own).begin * m_accumulation_bytes,
                shard_counts(shards, m_layout.own_node_size()), own);
}

void reduction::run_allreduce(shard_mode mode) {
  const auto shards = [this, mode](const chunk_range& chunk) {
    return shard_map(chunk.count, m_layout.leaders(), mode);
  };
  const auto reduce_intra_node = [this](const chunk_range& chunk) {
    return is_widened() ? sums(chunk, chunk.count) : recv(chunk.begin);
  };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const to = reduce_intra_node(chunk);
    if (is_widened()) widen(send(chunk.begin), m_operation.datatype, to, chunk.count);
    reduce_to_shards(shards(chunk), is_widened() ? to : send(chunk.begin), to);
  };
  work.exchange = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    const element_range own = shards(chunk).shard(m_layout.own_index());
    std::byte* const shard = reduce_intra_node(chunk) + own.begin * m_accumulation_bytes;
    sum(m_hierarchy.comms.inter_node, allreduce_phase, shard, shard, own.count);
    finish(shard, recv(chunk.begin + own.begin), own.count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    allgather_intra_node(m_hierarchy, shards(chunk), m_operation.datatype, recv(chunk.begin));
  };
  m_hierarchy.run_in_chunks(m_operation.count, step(m_operation.count), work);
}

void reduction::run_reduce(shard_mode mode) {
  const auto shards = [this, mode](const chunk_range& chunk) {
    return shard_map(chunk.count, m_layout.leaders(), mode);
  };
  const int root_node = m_layout.node_of(m_operation.root);
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    std::byte* const to = sums(chunk, chunk.count);
    if (is_widened()) widen(send(chunk.begin), m_operation.datatype, to, chunk.count);
    reduce_to_shards(shards(chunk), is_widened() ? to : send(chunk.begin), to);
  };
  work.exchange = [&](const chunk_range& chunk) {
    if (!m_layout.is_leader()) return;
    const element_range own = shards(chunk).shard(m_layout.own_index());
    std::byte* const shard = sums(chunk, chunk.count) + own.begin * m_accumulation_bytes;
    const bool is_root_node = m_layout.own_node() == root_node;
    sum(m_hierarchy.comms.inter_node, reduce_phase, shard, is_root_node ? shard : nullptr, own.count,
        root_node);
    if (is_root_node) finish(shard, results(chunk, chunk.count), own.count);
  };
  work.scatter = [&](const chunk_range& chunk) {
    if (m_layout.own_node() != root_node) return;
    const block_counts blocks = shard_counts(shards(chunk), m_layout.own_node_size());
    isthmus_operation operation = make_operation(
        gatherv_phase, m_operation.datatype, results(chunk, chunk.count),
        m_layout.rank() == m_operation.root ? recv(chunk.begin) : nullptr,
        blocks.counts[static_cast<std::size_t>(m_layout.own_index())], m_layout.index_of(m_operation.root));
    operation.recv_counts = blocks.counts.data();
    operation.recv_displs = blocks.displs.data();
    m_hierarchy.comms.intra_node.run(operation);
  };
  m_hierarchy.run_in_chunks(m_operation.count, step(m_operation.count), work);
}

// Widens one chunk of every rank's block, in the order of the layout.
void reduction::widen_blocks(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const {
  for (std::size_t position = 0; position < m_layout.order().size(); ++position) {
    const element_range block = blocks.block(position);
    if (block.count > 0)
      widen(send(m_blocks.send.begin(m_layout.order()[position]) + chunk.begin), m_operation.datatype,
            to + block.begin * m_accumulation_bytes, block.count);
  }
}

// Each leader gets the sums of the blocks of its ranks, in the order of the layout.
void reduction::reduce_to_leaders(const packed_blocks& blocks, const chunk_range& chunk, std::byte* to) const {
  if (is_widened()) widen_blocks(blocks, chunk, to);
  const std::byte* const from = is_widened() ? to : send(0);
  const auto packed_block = [&](int rank) {
    return blocks.block(static_cast<std::size_t>(m_layout.position_of(rank)));
  };
  const auto own = static_cast<std::size_t>(m_layout.own_index());
  for_each_group(
      m_layout,
      [&](int rank) -> element_range {
        if (is_widened()) return packed_block(rank);
        return {m_blocks.send.begin(rank) + chunk.begin, length(rank, chunk)};
      },
      [&](std::span<const int> ranks, const block_counts& each) {
        const std::uint64_t place = own < ranks.size() ? packed_block(ranks[own]).begin : 0;
        reduce_blocks(m_hierarchy.comms.intra_node, from, to + place * m_accumulation_bytes, each,
                      m_layout.own_index());
      });
}

void reduction::reduce_inter_node(const packed_blocks& blocks, std::byte* in) const {
  if (!m_layout.is_leader()) return;
  const int own = m_layout.own_index(), node = m_layout.own_node();
  block_counts runs;
  for (int each = 0; each < m_layout.nodes(); ++each) {
    const element_range leader_blocks = blocks.range(m_layout.leader_range(own, each));
    runs.add(leader_blocks.begin, leader_blocks.count);
  }
  std::byte* const own_range = in + runs.displs[static_cast<std::size_t>(node)] * m_accumulation_bytes;
  reduce_blocks(m_hierarchy.comms.inter_node, in, own_range, runs, node);
}

void reduction::distribute(const packed_blocks& blocks, const chunk_range& chunk, std::byte* from) const {
  const int own = m_layout.own_index();
  std::byte* result = recv(chunk.begin);
  if (m_layout.is_leader()) {
    const element_range leader_blocks = blocks.range(m_layout.leader_range(own, m_layout.own_node()));
    if (!m_layout.is_even()) result = results(chunk, leader_blocks.count);
    if (leader_blocks.count > 0)
      finish(from + leader_blocks.begin * m_accumulation_bytes, result, leader_blocks.count);
  }
  if (m_layout.is_even()) return;
  block_counts out, in;
  std::uint64_t next = 0;
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const int rank = m_layout.members(m_layout.own_node())[static_cast<std::size_t>(index)];
    const bool is_receiver = index % m_layout.leaders() == own, is_sender = own % m_layout.leaders() == index;
    out.add(next, is_receiver ? length(rank, chunk) : 0);
    in.add(0, is_sender ? length(m_layout.rank(), chunk) : 0);
    next += out.counts.back();
  }
  exchange_blocks(m_hierarchy.comms.intra_node, m_operation.datatype, m_layout.is_leader() ? result : nullptr,
                  out, recv(chunk.begin), in);
}

void reduction::run_reduce_scatter() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_layout.size(); ++rank) longest = std::max(longest, m_blocks.send.length(rank));
  const auto blocks = [this](const chunk_range& chunk) {
    return packed_blocks(m_layout, [&](int rank) { return length(rank, chunk); });
  };
  const auto memory = [this](const chunk_range& chunk, const packed_blocks& packing) {
    return sums(chunk, packing.total());
  };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    const packed_blocks packing = blocks(chunk);
    reduce_to_leaders(packing, chunk, memory(chunk, packing));
  };
  work.exchange = [&](const chunk_range& chunk) {
    const packed_blocks packing = blocks(chunk);
    reduce_inter_node(packing, memory(chunk, packing));
  };
  work.scatter = [&](const chunk_range& chunk) {
    const packed_blocks packing = blocks(chunk);
    distribute(packing, chunk, memory(chunk, packing));
  };
  m_hierarchy.run_in_chunks(longest, step(longest, static_cast<std::uint64_t>(m_layout.size())), work);
}

}  // namespace

void run_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  if (hierarchy.device) return run_device_reduction(hierarchy, operation, mode);
  const collective_row& row = row_of(operation.collective);
  reduction call(hierarchy, operation);
  if (row.send_extent != extent::count) return call.run_reduce_scatter();
  if (row.recv_ranks == buffer_ranks::root) return call.run_reduce(mode);
  call.run_allreduce(mode);
}

}  // namespace isthmus::hierarchical
