#include "backend/copy_engine/heap_sources.hpp"

#include <algorithm>
#include <optional>

namespace isthmus::copy_engine {
namespace {

// Where the data of every source lie, relative to a buffer that every rank has at the same place.
struct common_ground {
  const void* base;
  std::uint64_t bytes;     // that have to be in the heap
  bool is_receive_buffer;  // a source's data are where its readers will put them, else at the same offset
  std::uint64_t offset;
  bool own_first;
};

std::uint64_t end_of(const std::vector<block>& blocks) {
  std::uint64_t end = 0;
  for (const block& one : blocks) end = std::max(end, one.at + one.bytes);
  return end;
}

std::optional<common_ground> ground_of(const isthmus_operation& operation, const movement& moved, int rank) {
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

}  // namespace

const char* never_from_heap(isthmus_collective collective) {
  if (collective == ISTHMUS_GATHER || collective == ISTHMUS_SCATTER)
    return "a rank can't know where the root's or the others' buffer is; use copy_engine:staged";
  return nullptr;
}

void find_sources(const isthmus_backend_context& context, const isthmus_operation& operation,
                  const movement& moved, heap_sources& sources) {
  sources.all = false;
  const auto ground = ground_of(operation, moved, context.rank);
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  if (!ground || context.heap_find == nullptr ||
      context.heap_find(context.runtime, ground->base, ground->bytes, &block, &offset) == 0)
    return;
  sources.from.assign(static_cast<std::size_t>(context.size), nullptr);
  for (int source = 0; source < context.size; ++source) {
    const auto peer = static_cast<std::size_t>(source);
    if (block.peers[source] == nullptr) return;
    const std::uint64_t within = ground->is_receive_buffer ? moved.incoming[peer].at : ground->offset;
    sources.from[peer] = static_cast<const std::byte*>(block.peers[source]) + offset + within;
  }
  const auto* own = static_cast<const std::byte*>(operation.recv_buf) +
                    moved.incoming[static_cast<std::size_t>(context.rank)].at;
  sources.own_first = ground->own_first && operation.send_buf != own;
  sources.where = block.id * 0x9e3779b97f4a7c15u + offset * 2 + (ground->is_receive_buffer ? 1u : 0u);
  sources.all = true;
}

}  // namespace isthmus::copy_engine
