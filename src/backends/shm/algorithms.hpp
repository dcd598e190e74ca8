// The shm backend and its collective algorithms. Each function runs one collective on one rank.
//
// Blocking: returns when this rank's part is complete.
// Errors: throws operation_failure after context.fail has recorded the cause.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/shm/node_group.hpp"
#include "backends/shm/stores.hpp"
#include "base/block_map.hpp"
#include "kernels/kernels.hpp"

namespace isthmus {

// Collectives in shared memory for the ranks of one machine. The ranks may be threads or processes.
const isthmus_backend* shm_backend() noexcept;

}  // namespace isthmus

namespace isthmus::shm {

// A collective operation reduced to its data flow: which ranks contribute and receive which blocks, and whether
// blocks are copied or reduced. Algorithms use only this, so adding a collective means adding a row to the
// collective table.
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

// A buffer of some rank, described so that this rank can access it.
struct accessible_buffer {
  int owner;
  std::byte* begin;
  bool is_mapped;  // if false, `begin` is an address in the owner's process and the kernel copies
};

// Scratch memory of a rank. It is reused across operations so that calls do not allocate.
struct workspace {
  std::vector<std::byte> bytes;
  std::vector<const void*> sources;
  std::vector<accessible_buffer> contributions, receivers;
  std::vector<copy_range> ranges;
};

// Store mode for user buffers: streaming if all ranks together write more than the cache holds.
inline store_mode result_store_mode(const node_group& group, const collective_shape& shape) {
  const bool fits =
      shape.recv_bytes() * static_cast<std::uint64_t>(group.size()) <= group.parameters().streaming_bytes;
  return fits ? store_mode::cached : store_mode::streaming;
}

// Copies ranges into slots, from which other ranks read. With many ranks the ranges are copied one after the
// other: interleaved copies with prefetching took up to twice as long.
inline void copy_staged(const node_group& group, std::span<const copy_range> ranges, store_mode mode) {
  if (ranges.size() == 1 || group.size() <= static_cast<int>(max_rotating_ranks))
    return copy_interleaved(ranges, mode);
  for (const copy_range& each : ranges) copy(each.destination, each.source, each.bytes, mode);
}

// Data and flag share a cache line. Every block must fit into packet_block_bytes().
void run_packet(node_group& group, workspace& work, const collective_shape& shape);
std::uint64_t packet_block_bytes(const geometry& sizes, int size, bool is_per_destination);
// Allreduce and reduce with packets in two phases. It needs two waits, but each rank reads only about twice the
// size of the vector. Every slice must fit into the packet block of one rank.
void run_two_shot_packet(node_group& group, workspace& work, const collective_shape& shape);
// Contributions pass two hops: the ranks of a row exchange them, and the ranks of a column exchange whole rows. Each
// rank reads about 2 sqrt(n) packets instead of n - 1, and each packet has that many fewer readers. Contributions stay
// separate, so that reductions have the same bits as in all other algorithms. For collectives in which every rank
// sends one block of the same size to one or all ranks. Every block must fit into grid_packet_block_bytes().
void run_grid_packet(node_group& group, workspace& work, const collective_shape& shape);
std::uint64_t grid_packet_block_bytes(const geometry& sizes, int size);
void run_barrier(node_group& group);

// `staging_mode` is the store mode for memory that other ranks read. A cached store must first acquire the line
// from the core that holds it; a streaming store does not.

// Staged data that several ranks read is stored once for all of them (shared) or once for each reader
// (per_reader). Rewriting a line that many ranks have read costs several times as much as rewriting one that a
// single rank has read.
enum class staging_layout { shared, per_reader };

// The receivers whose blocks are staged. some: the root of a scatter and every third rank after it.
enum class staged_receivers { all, some };
constexpr bool is_staged(staged_receivers receivers, int root, int rank, int size) {
  const int distance = (rank - root + size) % size;
  return receivers == staged_receivers::all || distance == 0 || distance % 3 == 1;
}

// Sources stage their data, and receivers read every contribution. Pipelined by chunks.
void run_one_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                  staging_layout layout, staged_receivers receivers = staged_receivers::all);

// Which ranks reduce a slice. The root of a reduce already copies all results (all_but_root).
enum class slice_reducers { all, all_but_root };

// Reduce-scatter, then gather, for allreduce and reduce. Pipelined by chunks.
void run_two_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                  slice_reducers reducers);

// Copies directly between user buffers, through mappings if they exist, and otherwise through the kernel.
// Returns false on all ranks, without side effects, if any rank cannot access a buffer that it needs or has set
// `is_overwriting`: it would overwrite data that peers have yet to read (alltoall in place).
bool run_zero_copy(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                   bool is_overwriting);

// Scatter. The root stages the blocks of some receivers, while the others copy theirs as in zero_copy. Returns false on
// all ranks, without side effects, if a rank cannot access the root's buffer.
bool run_divided_scatter(node_group& group, workspace& work, const collective_shape& shape);

}  // namespace isthmus::shm
