// Collective algorithms of the shm backend. Each function runs one collective on one rank.
//
// Blocking: returns when this rank's part is complete.
// Errors: throws operation_failure after context.fail has recorded the cause.
#pragma once

#include <span>
#include <vector>

#include "backends/shm/collective_shape.hpp"
#include "backends/shm/copy.hpp"
#include "backends/shm/node_group.hpp"

namespace isthmus::shm {

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
void run_barrier(node_group& group);

// `staging_mode` is the store mode for memory that other ranks read. A cached store must first acquire the line
// from the core that holds it; a streaming store does not.

// Staged data that several ranks read is stored once for all of them (shared) or once for each reader
// (per_reader). Rewriting a line that many ranks have read costs several times as much as rewriting one that a
// single rank has read.
enum class staging_layout { shared, per_reader };

// Sources stage their data, and receivers read every contribution. Pipelined by chunks.
void run_one_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                  staging_layout layout);

// Reduce-scatter, then gather, for allreduce and reduce. Pipelined by chunks.
void run_two_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode);

// Copies directly between user buffers, through mappings if they exist, and otherwise through the kernel.
// Returns false on all ranks, without side effects, if any rank cannot access a buffer that it needs or has set
// `is_overwriting`: it would overwrite data that peers have yet to read (alltoall in place).
bool run_zero_copy(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode,
                   bool is_overwriting);

}  // namespace isthmus::shm
