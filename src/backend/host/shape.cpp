#include "backend/host/shape.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>

namespace isthmus::host {
namespace {

// The extents of this rank's buffers follow from the rest.
void set_extents(shape& s, int rank) {
  const auto n = static_cast<std::uint64_t>(s.size);
  if (s.contributes(rank)) s.send_elements = s.per_destination ? s.count * n : s.block_elements(rank);
  if (!s.takes(rank)) return;
  if (s.reduce != nullptr || s.source != all_ranks) {
    s.recv_elements = s.count;
  } else if (s.counts == nullptr) {
    s.recv_elements = s.count * n;
  } else {
    for (std::uint64_t r = 0; r < n; ++r)
      if (s.counts[r] > 0) s.recv_elements = std::max(s.recv_elements, s.displs[r] + s.counts[r]);
  }
}

}  // namespace

bool uses_channels(isthmus_collective collective) {
  switch (collective) {
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: return true;
    default: return false;
  }
}

shape shape_of(const isthmus_operation& operation, int rank, int size) {
  shape s{};
  s.element_bytes = isthmus_datatype_bytes(operation.datatype);
  s.count = operation.count;
  s.source = s.sink = all_ranks;
  s.send = static_cast<const std::byte*>(operation.send_buf);
  s.recv = static_cast<std::byte*>(operation.recv_buf);
  s.size = size;
  switch (operation.collective) {
    case ISTHMUS_BROADCAST: s.source = operation.root; break;
    case ISTHMUS_SCATTER:
      s.source = operation.root;
      s.per_destination = true;
      break;
    case ISTHMUS_GATHER: s.sink = operation.root; break;
    case ISTHMUS_ALLGATHERV:
      s.counts = operation.recv_counts;
      s.displs = operation.recv_displs;
      s.count = *std::max_element(s.counts, s.counts + size);
      break;
    case ISTHMUS_ALLTOALL: s.per_destination = true; break;
    case ISTHMUS_REDUCE:
      s.sink = operation.root;
      s.reduce = kernels().reduce[operation.datatype][operation.op];
      break;
    case ISTHMUS_ALLREDUCE: s.reduce = kernels().reduce[operation.datatype][operation.op]; break;
    case ISTHMUS_REDUCE_SCATTER:
      s.per_destination = true;
      s.reduce = kernels().reduce[operation.datatype][operation.op];
      break;
    default:  // allgather has nothing special; the rest never comes here
      break;
  }
  set_extents(s, rank);
  return s;
}

}  // namespace isthmus::host
