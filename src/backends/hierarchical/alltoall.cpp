#include <cstring>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/phases.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

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

}  // namespace

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
    isthmus_operation call{};
    call.collective = alltoallv_phase;
    call.datatype = operation.datatype;
    call.send_buf = from;
    call.recv_buf = operation.recv_buf;
    call.send_counts = sends.counts.data();
    call.send_displs = sends.displs.data();
    call.recv_counts = receives.counts.data();
    call.recv_displs = receives.displs.data();
    comm.run(call);
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
