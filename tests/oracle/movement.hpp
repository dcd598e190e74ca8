// Where every element of a collective's result comes from, written down from the definitions of MPI and
// NCCL: one list of pieces per rank.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <vector>

namespace oracle {

// Counts and displacements of one rank's buffer, in elements; one entry per rank.
struct blocks {
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> displs;
  std::uint64_t extent() const;  // elements from the start to the end of the last block
};

// Everything about a call except the data.
struct shape {
  isthmus_collective collective;
  int size;
  int root;                        // root, or the distance to the peer in a ring of send and recv
  std::uint64_t count;             // COUNT and COUNT_X_SIZE extents
  std::vector<blocks> send_parts;  // COUNTS extents: the arrays of each rank
  std::vector<blocks> recv_parts;
};

// `count` elements from `recv_at` on are the elements from `send_at` on of `rank`'s send buffer, or their
// reduction over all ranks where rank is `all_ranks`.
struct piece {
  static constexpr int all_ranks = -1;
  std::uint64_t recv_at;
  std::uint64_t count;
  int rank;
  std::uint64_t send_at;
};

// The pieces of `rank`'s receive buffer; what no piece covers must stay as it was.
std::vector<piece> expected_pieces(const shape& shape, int rank);

// Elements of the send and receive buffers that the call may touch on `rank`; 0 where there is none.
std::uint64_t send_extent(const shape& shape, int rank);
std::uint64_t recv_extent(const shape& shape, int rank);

}  // namespace oracle
