#include "backend/copy_engine/heap_places.hpp"

#include <algorithm>
#include <optional>

namespace isthmus::copy_engine {
namespace {

// A buffer that every rank has at the same place, and what there is in it for this rank to copy from or to.
struct common_ground {
  const void* base;
  std::uint64_t bytes;       // that have to be in the heap
  bool in_place_of_receipt;  // a peer's data are where their readers will put them, else all at `offset`
  std::uint64_t offset;
  bool own_first;  // the own block must be in place before it is lent
};

std::uint64_t end_of(const std::vector<block>& blocks) {
  std::uint64_t end = 0;
  for (const block& one : blocks) end = std::max(end, one.at + one.bytes);
  return end;
}

// Peers fetch out of send buffers, or out of receive buffers that hold the own block already.
std::optional<common_ground> fetched_from(const isthmus_operation& operation, const movement& moved, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  const auto* recv = static_cast<const std::byte*>(operation.recv_buf);
  switch (operation.collective) {
    case ISTHMUS_ALLGATHER:
      if (operation.send_buf == recv + moved.incoming[own].at)
        return common_ground{recv, end_of(moved.incoming), true, 0, false};
      return common_ground{operation.send_buf, moved.outgoing[own].bytes, false, 0, false};
    case ISTHMUS_ALLGATHERV:
      // A rank that contributes nothing may pass any send buffer, so the receive buffers have to do.
      return common_ground{recv, end_of(moved.incoming), true, 0, true};
    case ISTHMUS_ALLTOALL:
      if (operation.send_buf == operation.recv_buf) return std::nullopt;  // overwritten while others fetch
      return common_ground{operation.send_buf, end_of(moved.outgoing), false, moved.outgoing[own].at, false};
    case ISTHMUS_BROADCAST:
      // Only the root has a send buffer; everybody's receive buffer gets the data.
      return common_ground{recv, end_of(moved.incoming), false, 0, true};
    case ISTHMUS_GATHER:
    case ISTHMUS_SCATTER:
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV:
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return std::nullopt;
}

// Sources put their blocks into receive buffers.
std::optional<common_ground> put_into(const isthmus_operation& operation, const movement& moved, int rank) {
  if (never_in_heap(operation.collective) != nullptr) return std::nullopt;
  if (operation.collective == ISTHMUS_ALLTOALL && operation.send_buf == operation.recv_buf) return std::nullopt;
  return common_ground{operation.recv_buf, end_of(moved.incoming), false,
                       moved.incoming[static_cast<std::size_t>(rank)].at, false};
}

}  // namespace

// In place, a root's buffer lies elsewhere than the others', who can't know.
const char* never_in_heap(isthmus_collective collective) {
  if (collective == ISTHMUS_GATHER || collective == ISTHMUS_SCATTER)
    return "gather and scatter have buffers on one rank that others can't know; use copy_engine:staged";
  if (collective == ISTHMUS_REDUCE_SCATTER)
    return "reduce_scatter combines what comes into the transit area; use copy_engine:staged";
  return nullptr;
}

void find_places(const isthmus_backend_context& context, const isthmus_operation& operation,
                 const movement& moved, way how, heap_places& places) {
  places.all = false;
  const auto ground = how == way::push ? put_into(operation, moved, context.rank)
                                       : fetched_from(operation, moved, context.rank);
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  if (!ground || context.heap_find == nullptr ||
      context.heap_find(context.runtime, ground->base, ground->bytes, &block, &offset) == 0)
    return;
  places.at.assign(static_cast<std::size_t>(context.size), nullptr);
  for (int rank = 0; rank < context.size; ++rank) {
    const auto peer = static_cast<std::size_t>(rank);
    if (block.peers[rank] == nullptr) return;
    const std::uint64_t within = ground->in_place_of_receipt ? moved.incoming[peer].at : ground->offset;
    places.at[peer] = static_cast<std::byte*>(block.peers[rank]) + offset + within;
  }
  const auto* own = static_cast<const std::byte*>(operation.recv_buf) +
                    moved.incoming[static_cast<std::size_t>(context.rank)].at;
  places.own_first = ground->own_first && operation.send_buf != own;
  places.where = block.id * 0x9e3779b97f4a7c15u + offset * 2 + (ground->in_place_of_receipt ? 1u : 0u);
  places.all = true;
}

}  // namespace isthmus::copy_engine
