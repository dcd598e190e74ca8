// What data moves in one collective, freed of its name: who contributes what, who takes what, and whether
// it is copied or reduced. The algorithms work on this, so a collective is added in one place.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>

#include "backend/host/reduce/kernels.hpp"

namespace isthmus::host {

inline constexpr int all_ranks = -1;

struct shape {
  std::uint64_t element_bytes;
  std::uint64_t count;     // elements of the largest block
  int source;              // the one rank that contributes, or all_ranks
  int sink;                // the one rank that takes, or all_ranks
  bool per_destination;    // contributions have one block for each rank, else one block for everybody
  reduce_function reduce;  // nullptr: blocks are copied
  const std::byte* send;
  std::byte* recv;
  const std::uint64_t* counts;                 // elements of each contributor's block; nullptr: `count` each
  const std::uint64_t* displs;                 // where they go in recv; nullptr: one after the other
  std::uint64_t send_elements, recv_elements;  // extents of this rank's buffers
  int size;

  bool contributes(int rank) const { return source == all_ranks || source == rank; }
  bool takes(int rank) const { return sink == all_ranks || sink == rank; }
  // Does another rank take from what this one contributes?
  bool has_takers(int rank) const { return contributes(rank) && size > 1 && sink != rank; }
  // A rank whose time says how long the call takes: one that takes what others contribute.
  int judge() const {
    if (sink != all_ranks) return sink;
    return source == all_ranks ? 0 : (source + 1) % size;
  }
  std::uint64_t block_elements(int contributor) const {
    return counts == nullptr ? count : counts[contributor];
  }
  // Where the block for `destination` begins in a contributor's send buffer, in bytes.
  std::uint64_t send_offset(int destination) const {
    return per_destination ? static_cast<std::uint64_t>(destination) * count * element_bytes : 0;
  }
  // Where the block of `contributor` goes in recv, in bytes.
  std::uint64_t recv_offset(int contributor) const {
    if (reduce != nullptr || source != all_ranks) return 0;
    return (displs == nullptr ? static_cast<std::uint64_t>(contributor) * count : displs[contributor]) *
           element_bytes;
  }
  std::uint64_t recv_bytes() const { return recv_elements * element_bytes; }
};

// The shape of a collective other than barrier and those that go through channels.
shape shape_of(const isthmus_operation& operation, int rank, int size);

// True for collectives whose counts only some ranks know; they go through channels.
bool uses_channels(isthmus_collective collective);

}  // namespace isthmus::host
