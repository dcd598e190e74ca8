// One collective, freed of its name: who contributes what, who takes what, and whether it is copied or reduced.
// The algorithms work on this, so a collective is added in THE TABLE.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/block_map.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::shm {

struct collective_shape : block_map {
  std::uint64_t count;     // elements of the largest block
  cpu::reduce_function reduce;  // nullptr: blocks are copied
  const std::byte* send_buf;
  std::byte* recv_buf;

  // Precondition: neither a barrier nor a collective that goes through channels.
  collective_shape(const isthmus_operation& operation, int own_rank, int ranks, const cpu::kernel_table& kernels)
      : block_map(operation, own_rank, ranks),
        count(max_count(shared_counts(operation), ranks, operation.count)),
        reduce(row_of(operation.collective).is_reduction ? kernels.reduce[operation.datatype][operation.op]
                                                    : nullptr),
        send_buf(static_cast<const std::byte*>(operation.send_buf)),
        recv_buf(static_cast<std::byte*>(operation.recv_buf)) {}

  // Does another rank take from what this one contributes?
  bool has_receivers() const { return is_source(rank) && size > 1 && receiver != rank; }
  // A rank whose time says how long the call takes: one that takes what others contribute.
  int timing_rank() const {
    if (receiver != all_ranks) return receiver;
    return source == all_ranks ? 0 : (source + 1) % size;
  }
  // What a contributor's block for this rank has, and what this one has for a reader.
  std::uint64_t recv_elements(int contributor) const { return recv.length(contributor); }
  std::uint64_t send_elements(int reader) const { return send.length(reader); }
  // Someone reads this contributor's buffer; all ranks know it.
  bool is_read(int contributor) const {
    return is_source(contributor) && (recv.shape != extent::counts || recv.length(contributor) > 0);
  }
  // In bytes, where the block for `reader` begins in a contributor's send buffer, and that of a contributor in
  // a receive buffer.
  std::uint64_t send_offset(int reader) const { return send.begin(reader) * element_bytes; }
  std::uint64_t recv_offset(int contributor) const { return recv.begin(contributor) * element_bytes; }

 private:
  static std::uint64_t max_count(const std::uint64_t* counts, int ranks, std::uint64_t fallback) {
    return counts == nullptr ? fallback : *std::max_element(counts, counts + ranks);
  }
};

// What only its two ends know goes through channels: messages, and collectives with such counts.
constexpr bool uses_channels(isthmus_collective collective) {
  return is_point_to_point(collective) || has_private_counts(row_of(collective));
}

}  // namespace isthmus::shm
