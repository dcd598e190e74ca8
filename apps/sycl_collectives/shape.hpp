// What one rank does in one collective of a given size: counts, blocks, and where every received element
// must have come from.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sycl_collectives {

// The collectives of THE TABLE; its send and recv are measured together, as a ring exchange.
struct collective_case {
  const char* name;
  isthmus_collective collective;  // ISTHMUS_SEND: the ring exchange
};
const std::vector<collective_case>& all_cases();

// `length` elements at `recv_at` come from `source_at` of the send buffer of rank `source`, or from all
// ranks, reduced, when `source` is -1.
struct segment {
  std::uint64_t recv_at;
  int source;
  std::uint64_t source_at;
  std::uint64_t length;
};

struct shape {
  collective_case what;
  int rank = 0;
  int size = 1;
  int root = 0;
  std::uint64_t bytes = 0;          // of the buffer that nccl-tests calls size; allgather: bytes per rank
  std::uint64_t count = 0;          // the argument of that name, in elements
  std::uint64_t send_elements = 0;  // in this rank's buffers; 0: not used
  std::uint64_t recv_elements = 0;
  bool in_place = false;  // broadcast: the root sends from its receive buffer, as MPI does
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;  // v-collectives
  std::vector<segment> expected;  // covers exactly what this rank receives
  double counted_bytes = 0;       // bytes behind algbw, as nccl-tests counts them
  double bus_factor = 0;          // busbw = algbw * bus_factor

  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
};

// `bytes` is cut to whole blocks of floats.
shape make_shape(const collective_case& what, std::uint64_t bytes, int rank, int size);

}  // namespace sycl_collectives
