// A collective operation reduced to its data flow: which ranks contribute and receive which blocks, and whether
// blocks are copied or reduced. Algorithms use only this, so adding a collective means adding a row to the
// collective table.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/block_map.hpp"
#include "kernels/kernels.hpp"

namespace isthmus::shm {

struct collective_shape : block_map {
  std::uint64_t count;          // elements of the largest block
  cpu::reduce_function reduce;  // nullptr: blocks are copied
  const std::byte* send_buf;
  std::byte* recv_buf;

  // Precondition: the collective is not a barrier and does not use channels.
  collective_shape(const isthmus_operation& operation, int own_rank, int ranks,
                   const cpu::kernel_table& kernels)
      : block_map(operation, own_rank, ranks),
        count(max_count(shared_counts(operation), ranks, operation.count)),
        reduce(row_of(operation.collective).is_reduction ? kernels.reduce[operation.datatype][operation.op]
                                                         : nullptr),
        send_buf(static_cast<const std::byte*>(operation.send_buf)),
        recv_buf(static_cast<std::byte*>(operation.recv_buf)) {}

  // Returns true if another rank receives this rank's contribution.
  bool has_receivers() const { return is_source(rank) && size > 1 && receiver != rank; }
  // Returns the rank whose measured time represents the call, which is a rank that receives
  // contributions of others.
  int timing_rank() const {
    if (receiver != all_ranks) return receiver;
    return source == all_ranks ? 0 : (source + 1) % size;
  }
  // Elements of a contributor's block for this rank, and of this rank's block for a reader.
  std::uint64_t recv_elements(int contributor) const { return recv.length(contributor); }
  std::uint64_t send_elements(int reader) const { return send.length(reader); }
  // Returns true if another rank reads this contributor's buffer. The result is equal on all ranks.
  bool is_read(int contributor) const {
    return is_source(contributor) && (recv.shape != extent::counts || recv.length(contributor) > 0);
  }
  // Byte offsets of the block for `reader` in a send buffer, and of a contributor's block in a receive buffer.
  std::uint64_t send_offset(int reader) const { return send.begin(reader) * element_bytes; }
  std::uint64_t recv_offset(int contributor) const { return recv.begin(contributor) * element_bytes; }

 private:
  static std::uint64_t max_count(const std::uint64_t* counts, int ranks, std::uint64_t fallback) {
    return counts == nullptr ? fallback : *std::max_element(counts, counts + ranks);
  }
};

// Channels carry messages and collectives whose counts only some ranks know.
constexpr bool uses_channels(isthmus_collective collective) {
  return is_point_to_point(collective) || has_private_counts(row_of(collective));
}

}  // namespace isthmus::shm
