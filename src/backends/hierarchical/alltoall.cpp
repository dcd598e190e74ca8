#include <cstring>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/phases.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// The counts of one side of a call by `part`, whose ranks are `members`, but for this rank's own block.
template <typename Length>
block_counts counts_without_self(const std::vector<int>& members, const block_list& list, Length&& length) {
  block_counts made;
  for (const int rank : members) {
    const std::uint64_t count = length(rank);
    made.add(count > 0 ? list.begin(rank) : 0, count);
  }
  return made;
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
  std::byte* const place = static_cast<std::byte*>(operation.recv_buf) + in.offset;
  if (out.bytes > 0 && own != place) std::memmove(place, own, out.bytes);

  const auto move = [&](const subcommunicator& comm, const std::vector<int>& members, auto&& with) {
    const block_counts sent = counts_without_self(members, blocks.send, [&](int rank) {
      return with(rank) ? blocks.outgoing_block(rank).bytes / blocks.element_bytes : 0;
    });
    const block_counts received = counts_without_self(members, blocks.recv, [&](int rank) {
      return with(rank) ? blocks.incoming_block(rank).bytes / blocks.element_bytes : 0;
    });
    isthmus_operation call{};
    call.collective = phase::alltoallv;
    call.datatype = operation.datatype;
    call.send_buf = from;
    call.recv_buf = operation.recv_buf;
    call.send_counts = sent.counts.data();
    call.send_displs = sent.displs.data();
    call.recv_counts = received.counts.data();
    call.recv_displs = received.displs.data();
    comm.run(call);
  };
  const auto is_near = [&](int rank) { return layout.node_of(rank) == layout.own_node(); };
  const auto& node = layout.members(layout.own_node());
  move(hierarchy.comms.intra_node, node, [&](int rank) { return rank != layout.rank(); });
  std::vector<int> everybody;
  for (int rank = 0; rank < layout.size(); ++rank) everybody.push_back(rank);
  move(hierarchy.comms.all_ranks_comm, everybody, [&](int rank) { return !is_near(rank); });
}

void run_messages(const node_hierarchy& hierarchy, const isthmus_operation* operations, std::size_t n) {
  const rank_layout& layout = hierarchy.layout;
  message_batch group;
  // Those between islands first: their part is the one that the calling thread serves, and MPI may know no
  // other.
  for (const bool near : {false, true})
    for (std::size_t i = 0; i < n; ++i) {
      isthmus_operation message = operations[i];
      if (!is_point_to_point(message.collective) || (layout.node_of(message.root) == layout.own_node()) != near)
        continue;
      if (near) message.root = layout.index_of(message.root);
      (near ? hierarchy.comms.intra_node : hierarchy.comms.all_ranks_comm).run(message);
    }
  group.finish();
}

}  // namespace isthmus::hierarchical
