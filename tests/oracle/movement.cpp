#include "movement.hpp"

#include <algorithm>
#include <cstdlib>

namespace oracle {

std::uint64_t block_layout::extent() const {
  std::uint64_t end = 0;
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] > 0) end = std::max(end, displs[r] + counts[r]);
  return end;
}

std::vector<expected_segment> expected_segments(const operation_shape& shape, int rank) {
  const int n = shape.size;
  const std::uint64_t count = shape.count;
  const auto u = [](int value) { return static_cast<std::uint64_t>(value); };
  const bool is_root = rank == shape.root;
  std::vector<expected_segment> segments;
  switch (shape.collective) {
    case ISTHMUS_BROADCAST: return {{0, count, shape.root, 0}};
    case ISTHMUS_REDUCE:
      if (is_root) segments.push_back({0, count, expected_segment::all_ranks, 0});
      return segments;
    case ISTHMUS_ALLREDUCE: return {{0, count, expected_segment::all_ranks, 0}};
    case ISTHMUS_REDUCE_SCATTER: return {{0, count, expected_segment::all_ranks, u(rank) * count}};
    case ISTHMUS_REDUCE_SCATTERV: {
      const block_layout& layout = shape.send_layouts[rank];
      return {{0, layout.counts[rank], expected_segment::all_ranks, layout.displs[rank]}};
    }
    case ISTHMUS_GATHER:
      if (!is_root) return segments;
      [[fallthrough]];
    case ISTHMUS_ALLGATHER:
      for (int r = 0; r < n; ++r) segments.push_back({u(r) * count, count, r, 0});
      return segments;
    case ISTHMUS_GATHERV:
      if (!is_root) return segments;
      [[fallthrough]];
    case ISTHMUS_ALLGATHERV:
      for (int r = 0; r < n; ++r)
        segments.push_back({shape.recv_layouts[rank].displs[r], shape.recv_layouts[rank].counts[r], r, 0});
      return segments;
    case ISTHMUS_SCATTER: return {{0, count, shape.root, u(rank) * count}};
    case ISTHMUS_SCATTERV: {
      const block_layout& layout = shape.send_layouts[shape.root];
      return {{0, layout.counts[rank], shape.root, layout.displs[rank]}};
    }
    case ISTHMUS_ALLTOALL:
      for (int r = 0; r < n; ++r) segments.push_back({u(r) * count, count, r, u(rank) * count});
      return segments;
    case ISTHMUS_ALLTOALLV:
      for (int r = 0; r < n; ++r)
        segments.push_back({shape.recv_layouts[rank].displs[r], shape.recv_layouts[rank].counts[r], r,
                            shape.send_layouts[r].displs[rank]});
      return segments;
    case ISTHMUS_SEND:  // ring: each rank sends to rank + root and receives from rank - root
    case ISTHMUS_RECV: return {{0, count, (rank + n - shape.root % n) % n, 0}};
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: return segments;
  }
  std::abort();
}

std::uint64_t send_extent(const operation_shape& shape, int rank) {
  const auto n = static_cast<std::uint64_t>(shape.size);
  switch (shape.collective) {
    case ISTHMUS_BROADCAST: return rank == shape.root ? shape.count : 0;
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_GATHER:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: return shape.count;
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_ALLTOALL: return n * shape.count;
    case ISTHMUS_ALLGATHERV: return shape.recv_layouts[rank].counts[rank];
    case ISTHMUS_GATHERV: return shape.recv_layouts[shape.root].counts[rank];
    case ISTHMUS_SCATTER: return rank == shape.root ? n * shape.count : 0;
    case ISTHMUS_SCATTERV: return rank == shape.root ? shape.send_layouts[rank].extent() : 0;
    case ISTHMUS_REDUCE_SCATTERV:
    case ISTHMUS_ALLTOALLV: return shape.send_layouts[rank].extent();
    case ISTHMUS_BARRIER:
    case ISTHMUS_COLLECTIVE_COUNT: return 0;
  }
  std::abort();
}

std::uint64_t recv_extent(const operation_shape& shape, int rank) {
  std::uint64_t end = 0;
  for (const expected_segment& segment : expected_segments(shape, rank))
    if (segment.count > 0) end = std::max(end, segment.recv_offset + segment.count);
  return end;
}

}  // namespace oracle
