#include <algorithm>
#include <cstring>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// Gathers the blocks of all ranks in `buffer`, which already contains this rank's block.
void allgather_in_place(const subcommunicator& comm, isthmus_datatype datatype, std::byte* buffer,
                        const block_counts& blocks, int own_rank) {
  if (blocks.is_empty()) return;
  const std::uint64_t width = bytes_of(datatype);
  const auto own = static_cast<std::size_t>(own_rank);
  const std::byte* const from = buffer + blocks.displs[own] * width;
  if (blocks.is_uniform())
    return comm.run(
        make_operation(allgather_phase, datatype, from, buffer + blocks.displs[0] * width, blocks.counts[own]));
  isthmus_operation operation = make_operation(allgatherv_phase, datatype, from, buffer, blocks.counts[own]);
  operation.recv_counts = blocks.counts.data();
  operation.recv_displs = blocks.displs.data();
  comm.run(operation);
}

void run_broadcast_phase(const subcommunicator& comm, isthmus_datatype datatype, const std::byte* from,
                         std::byte* to, std::uint64_t count, int root) {
  if (count > 0) comm.run(make_operation(broadcast_phase, datatype, from, to, count, root));
}

// Counts and displacements of one side of an alltoallv on a subcommunicator of `members`. They exclude this
// rank's own block, which is copied separately.
template <typename Length>
block_counts counts_without_self(const std::vector<int>& members, const block_list& list, Length&& length) {
  block_counts result;
  for (const int rank : members) {
    const std::uint64_t count = length(rank);
    result.add(count > 0 ? list.begin(rank) : 0, count);
  }
  return result;
}

// Runs allgather and allgatherv through the leaders. Every block is sent from and received in its final place.
class allgather_call {
 public:
  allgather_call(node_hierarchy& hierarchy, const isthmus_operation& operation)
      : m_hierarchy(hierarchy),
        m_layout(hierarchy.layout),
        m_operation(operation),
        m_blocks(operation, hierarchy.layout.rank(), hierarchy.layout.size()),
        m_element_bytes(bytes_of(operation.datatype)),
        m_recv(static_cast<std::byte*>(operation.recv_buf)) {}

  void run();

 private:
  // Returns the part of a rank's block that belongs to the chunk.
  element_range block(int rank, const chunk_range& chunk) const {
    const std::uint64_t all = m_blocks.recv.length(rank);
    if (all <= chunk.begin) return {};
    return {m_blocks.recv.begin(rank) + chunk.begin, std::min(chunk.count, all - chunk.begin)};
  }

  void gather_to_leaders(const chunk_range& chunk) const;
  void inter_node(const chunk_range& chunk) const;
  void intra_node(const chunk_range& chunk) const;

  node_hierarchy& m_hierarchy;
  const rank_layout& m_layout;
  const isthmus_operation& m_operation;
  block_map m_blocks;
  std::uint64_t m_element_bytes;
  std::byte* m_recv;
};

void allgather_call::gather_to_leaders(const chunk_range& chunk) const {
  const std::byte* const own =
      static_cast<const std::byte*>(m_operation.send_buf) + chunk.begin * m_element_bytes;
  const element_range own_block = block(m_layout.rank(), chunk);
  std::byte* const own_place = m_recv + own_block.begin * m_element_bytes;
  if (m_layout.is_leader() && own_block.count > 0 && own != own_place)
    std::memcpy(own_place, own, own_block.count * m_element_bytes);
  if (m_layout.own_node_size() == m_layout.leaders()) return;
  block_counts out, in;
  const auto& node = m_layout.members(m_layout.own_node());
  for (int index = 0; index < m_layout.own_node_size(); ++index) {
    const int rank = node[static_cast<std::size_t>(index)];
    const bool is_sender = !m_layout.is_leader() && m_layout.leader_of(m_layout.rank()) == index;
    const bool is_receiver =
        rank != m_layout.rank() && m_layout.is_leader() && m_layout.leader_of(rank) == m_layout.own_index();
    const element_range each = block(rank, chunk);
    out.add(0, is_sender ? own_block.count : 0);
    in.add(each.begin, is_receiver ? each.count : 0);
  }
  exchange_blocks(m_hierarchy.comms.intra_node, m_operation.datatype, own, out, m_recv, in);
}

// A leader with several ranks per node exchanges one block of each node at a time.
void allgather_call::inter_node(const chunk_range& chunk) const {
  if (!m_layout.is_leader()) return;
  const auto own = static_cast<std::size_t>(m_layout.own_index());
  for (int group = 0; group < m_layout.largest_group_count(); ++group) {
    block_counts blocks;
    for (int node = 0; node < m_layout.nodes(); ++node) {
      const std::span<const int> ranks = m_layout.group(node, group);
      const element_range each = own < ranks.size() ? block(ranks[own], chunk) : element_range{};
      blocks.add(each.begin, each.count);
    }
    allgather_in_place(m_hierarchy.comms.inter_node, m_operation.datatype, m_recv, blocks, m_layout.own_node());
  }
}

void allgather_call::intra_node(const chunk_range& chunk) const {
  for_each_group(
      m_layout, [&](int rank) { return block(rank, chunk); },
      [&](std::span<const int>, const block_counts& blocks) {
        allgather_in_place(m_hierarchy.comms.intra_node, m_operation.datatype, m_recv, blocks,
                           m_layout.own_index());
      });
}

void allgather_call::run() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_layout.size(); ++rank) longest = std::max(longest, m_blocks.recv.length(rank));
  const auto block = static_cast<std::uint64_t>(m_layout.size()) * m_element_bytes;
  stages work;
  work.gather = [this](const chunk_range& chunk) { gather_to_leaders(chunk); };
  work.exchange = [this](const chunk_range& chunk) { inter_node(chunk); };
  work.scatter = [this](const chunk_range& chunk) { intra_node(chunk); };
  m_hierarchy.run_in_chunks(longest, m_hierarchy.step(longest, block), work);
}

}  // namespace

void exchange_blocks(const subcommunicator& comm, isthmus_datatype datatype, const void* from,
                     const block_counts& sends, void* to, const block_counts& receives) {
  isthmus_operation operation = make_operation(alltoallv_phase, datatype, from, to, 0);
  operation.send_counts = sends.counts.data();
  operation.send_displs = sends.displs.data();
  operation.recv_counts = receives.counts.data();
  operation.recv_displs = receives.displs.data();
  comm.run(operation);
}

void allgather_intra_node(const node_hierarchy& hierarchy, const shard_map& shards, isthmus_datatype datatype,
                          std::byte* buffer) {
  const rank_layout& layout = hierarchy.layout;
  if (shards.shard_elements == 0)  // the first leader has the whole message
    return run_broadcast_phase(hierarchy.comms.intra_node, datatype, buffer, buffer, shards.remainder, 0);
  allgather_in_place(hierarchy.comms.intra_node, datatype, buffer, shard_counts(shards, layout.own_node_size()),
                     layout.own_index());
}

void run_broadcast(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const rank_layout& layout = hierarchy.layout;
  const int node = layout.node_of(operation.root);
  const bool is_root_node = layout.own_node() == node;
  const std::uint64_t width = bytes_of(operation.datatype);
  const auto recv = [&](const chunk_range& chunk) {
    return static_cast<std::byte*>(operation.recv_buf) + chunk.begin * width;
  };
  const auto shards = [&](const chunk_range& chunk) { return shard_map(chunk.count, layout.leaders(), mode); };
  stages work;
  work.gather = [&](const chunk_range& chunk) {
    const std::byte* const from = static_cast<const std::byte*>(operation.send_buf) + chunk.begin * width;
    if (is_root_node)
      run_broadcast_phase(hierarchy.comms.intra_node, operation.datatype, from, recv(chunk), chunk.count,
                          layout.index_of(operation.root));
  };
  work.exchange = [&](const chunk_range& chunk) {
    if (!layout.is_leader()) return;
    const element_range own = shards(chunk).shard(layout.own_index());
    std::byte* const buffer = recv(chunk) + own.begin * width;
    run_broadcast_phase(hierarchy.comms.inter_node, operation.datatype, buffer, buffer, own.count, node);
  };
  work.scatter = [&](const chunk_range& chunk) {
    if (!is_root_node) allgather_intra_node(hierarchy, shards(chunk), operation.datatype, recv(chunk));
  };
  hierarchy.run_in_chunks(operation.count, hierarchy.step(operation.count, width), work);
}

void run_allgather(node_hierarchy& hierarchy, const isthmus_operation& operation) {
  allgather_call(hierarchy, operation).run();
}

void run_barrier(const node_hierarchy& hierarchy) {
  isthmus_operation operation{};
  operation.collective = barrier_phase;
  hierarchy.comms.intra_node.run(operation);
  if (hierarchy.layout.own_index() == 0) hierarchy.comms.inter_node.run(operation);
  hierarchy.comms.intra_node.run(operation);
}

void run_alltoall(node_hierarchy& hierarchy, const isthmus_operation& operation) {
  const rank_layout& layout = hierarchy.layout;
  const block_map blocks(operation, layout.rank(), layout.size());
  const void* from = operation.send_buf;
  if (overwrites_unsent_data(operation)) {
    std::byte* const copy = hierarchy.sums[0].reserve(blocks.send_bytes());
    if (blocks.send_bytes() > 0) std::memcpy(copy, from, blocks.send_bytes());
    from = copy;
  }
  const block out = blocks.outgoing_block(layout.rank()), in = blocks.incoming_block(layout.rank());
  const std::byte* const own = static_cast<const std::byte*>(from) + out.offset;
  std::byte* const destination = static_cast<std::byte*>(operation.recv_buf) + in.offset;
  if (out.bytes > 0 && own != destination) std::memmove(destination, own, out.bytes);

  const auto exchange = [&](const subcommunicator& comm, const std::vector<int>& members, auto&& includes) {
    const block_counts sends = counts_without_self(members, blocks.send, [&](int rank) {
      return includes(rank) ? blocks.outgoing_block(rank).bytes / blocks.element_bytes : 0;
    });
    const block_counts receives = counts_without_self(members, blocks.recv, [&](int rank) {
      return includes(rank) ? blocks.incoming_block(rank).bytes / blocks.element_bytes : 0;
    });
    exchange_blocks(comm, operation.datatype, from, sends, operation.recv_buf, receives);
  };
  const auto is_intra_node = [&](int rank) { return layout.node_of(rank) == layout.own_node(); };
  const auto& node = layout.members(layout.own_node());
  exchange(hierarchy.comms.intra_node, node, [&](int rank) { return rank != layout.rank(); });
  std::vector<int> all_members;
  for (int rank = 0; rank < layout.size(); ++rank) all_members.push_back(rank);
  exchange(hierarchy.comms.all_ranks_comm, all_members, [&](int rank) { return !is_intra_node(rank); });
}

void run_messages(const node_hierarchy& hierarchy, const isthmus_operation* operations, std::size_t n) {
  const rank_layout& layout = hierarchy.layout;
  message_batch group;
  // Run inter-node messages first, on the calling thread, because it might be the only thread that
  // may call MPI.
  for (const bool is_near : {false, true})
    for (std::size_t i = 0; i < n; ++i) {
      isthmus_operation message = operations[i];
      if (!is_point_to_point(message.collective) ||
          (layout.node_of(message.root) == layout.own_node()) != is_near)
        continue;
      if (is_near) message.root = layout.index_of(message.root);
      (is_near ? hierarchy.comms.intra_node : hierarchy.comms.all_ranks_comm).run(message);
    }
  group.finish();
}

}  // namespace isthmus::hierarchical
