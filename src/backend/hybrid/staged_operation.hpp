// The shape of one operation's buffers on one rank: what travels from the device, and what goes back.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <vector>

namespace isthmus::hybrid {

struct block {
  std::uint64_t at, bytes;  // from the start of the buffer
};

struct staged_shape {
  std::uint64_t send_bytes = 0;    // from the start of send_buf; 0: not read on this rank
  std::uint64_t recv_bytes = 0;    // the extent of recv_buf; 0: not written on this rank
  std::vector<block> recv_blocks;  // what is written: gaps between blocks stay as they are
  bool elementwise = false;        // may be cut into pieces of elements, each an operation of its own
};

staged_shape shape_of(const isthmus_operation& operation, int rank, int size);

}  // namespace isthmus::hybrid
