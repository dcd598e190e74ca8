// Where every element of a collective's result comes from, written down from the definitions of MPI and
// NCCL: one list of pieces per rank.
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

// Everything about a call except the data.
struct operation_shape {
  isthmus_collective collective;
  int size;
  int root;                        // root, or the distance to the peer in a ring of send and recv
  std::uint64_t count;             // COUNT and COUNT_X_SIZE extents
  std::vector<block_layout> send_layouts;  // COUNTS extents: the arrays of each rank
  std::vector<block_layout> recv_layouts;
};

// `count` elements from `recv_offset` on are the elements from `send_offset` on of `rank`'s send buffer, or their
// reduction over all ranks where rank is `all_ranks`.
struct expected_piece {
  static constexpr int all_ranks = -1;
  std::uint64_t recv_offset;
  std::uint64_t count;
  int rank;
  std::uint64_t send_offset;
};

// The pieces of `rank`'s receive buffer; what no piece covers must stay as it was.
std::vector<expected_piece> expected_pieces_of(const operation_shape& shape, int rank);

// Elements of the send and receive buffers that the call may touch on `rank`; 0 where there is none.
std::uint64_t send_extent(const operation_shape& shape, int rank);
std::uint64_t recv_extent(const operation_shape& shape, int rank);

}  // namespace oracle
