// The origin of every element of a collective's result, derived from the definitions of MPI and NCCL: a list of
// pieces per rank.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <vector>

namespace oracle {

// Counts and displacements of one rank's buffer, in elements; one entry per rank.
struct block_layout {
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> displs;
  std::uint64_t extent() const;  // elements from the start to the end of the last block
};

// All properties of a call except its data.
struct operation_shape {
  isthmus_collective collective;
  int size;
  int root;             // the root, or the distance to the peer in a ring of sends and receives
  std::uint64_t count;  // COUNT and COUNT_X_SIZE extents
  std::vector<block_layout> send_layouts;  // COUNTS extents: the layout of each rank
  std::vector<block_layout> recv_layouts;
};

// `count` elements starting at `recv_offset` equal those starting at `send_offset` in the send buffer of
// `rank`, or their reduction over all ranks if rank is `all_ranks`.
struct expected_segment {
  static constexpr int all_ranks = -1;
  std::uint64_t recv_offset;
  std::uint64_t count;
  int rank;
  std::uint64_t send_offset;
};

// The pieces of `rank`'s receive buffer. Elements that no piece covers must not change.
std::vector<expected_segment> expected_segments(const operation_shape& shape, int rank);

// Number of elements of the send and receive buffers that the call can access on `rank`; 0 if it has
// no such buffer.
std::uint64_t send_extent(const operation_shape& shape, int rank);
std::uint64_t recv_extent(const operation_shape& shape, int rank);

}  // namespace oracle
