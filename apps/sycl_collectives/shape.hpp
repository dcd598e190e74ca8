// The arguments of one rank in one collective of a given size: counts and blocks, from the oracle of the tests.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <vector>

#include "oracle/movement.hpp"

namespace sycl_collectives {

// The collectives to run; send and recv are measured together, as a ring exchange.
struct collective_entry {
  const char* name;
  isthmus_collective collective;  // ISTHMUS_SEND: the ring exchange
};
const std::vector<collective_entry>& all_entries();

struct call_shape {
  collective_entry entry;
  int rank = 0;
  int size = 1;
  int root = 0;
  std::uint64_t bytes = 0;          // the size as nccl-tests defines it; allgather: bytes per rank
  std::uint64_t count = 0;          // the count argument, in elements
  std::uint64_t send_elements = 0;  // of this rank's buffers; 0: not used
  std::uint64_t recv_elements = 0;
  bool in_place = false;  // broadcast: the root sends from its receive buffer, as MPI does
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;  // v-collectives
  oracle::operation_shape definition;                                             // of all ranks

  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
};

// The arguments for a size of `bytes`, rounded down to whole blocks of floats.
call_shape make_shape(const collective_entry& entry, std::uint64_t bytes, int rank, int size);

}  // namespace sycl_collectives
