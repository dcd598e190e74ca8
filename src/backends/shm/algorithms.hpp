// The algorithms. Each runs one collective on one rank to its end, or throws failure. docs/host_backend.md
// has what each moves and when it is the best.
#pragma once

#include <span>
#include <vector>

#include "backends/shm/copy.hpp"
#include "backends/shm/collective_shape.hpp"
#include "backends/shm/node_group.hpp"

namespace isthmus::shm {

// A rank's buffer as this rank reaches it.
struct accessible_buffer {
  int owner;
  std::byte* begin;
  bool is_mapped;  // else `begin` is an address in the owner's process, and the kernel copies
};

// Memory of a rank that outlives single operations, so that none allocates.
struct workspace {
  std::vector<std::byte> bytes;
  std::vector<const void*> sources;
  std::vector<accessible_buffer> contributions, receivers;
  std::vector<copy_range> pieces;
};

// How the user's own buffers are written: past the cache when all ranks together write more than it holds.
inline store_mode result_store_mode(const node_group& group, const collective_shape& shape) {
  const bool fits = shape.recv_bytes() * static_cast<std::uint64_t>(group.size()) <= group.parameters().streaming_bytes;
  return fits ? store_mode::cached : store_mode::streaming;
}

// Into slots, for others to read. With many ranks one piece after the other: side by side, and the lines asked
// for ahead, took up to twice as long (docs/notes).
inline void copy_staged(const node_group& group, std::span<const copy_range> pieces, store_mode mode) {
  if (pieces.size() == 1 || group.size() <= static_cast<int>(max_rotating_ranks)) return copy_interleaved(pieces, mode);
  for (const copy_range& each : pieces) copy(each.to, each.from, each.bytes, mode);
}

// Data and flag in one cache line. Every block must fit: see packet_block_bytes.
void run_packet(node_group& group, workspace& work, const collective_shape& shape);
std::uint64_t packet_block_bytes(const geometry& sizes, int size, bool is_per_destination);
// Allreduce and reduce by packets in two shots: two waits, but each rank reads little more than the vector
// twice. Every slice must fit where packet has a block for one rank.
void run_two_shot_packet(node_group& group, workspace& work, const collective_shape& shape);
void run_barrier(node_group& group);

// `shared` says how memory is written that other ranks read or have read. Lines that another core holds
// must be taken from it before they can be written through the cache; past the cache they need not.

// What several ranks read lies in shared memory once for all of them, or apart, for each once: a line that many
// have read costs several times as much to write again as one that a single rank has read (docs/notes).
enum class staging_layout { shared, per_reader };

// Contributors stage, takers read every contribution; pipelined chunk by chunk.
void run_one_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode, staging_layout layout);

// Reduce-scatter and then gather, pipelined chunk by chunk; for allreduce and reduce.
void run_two_shot(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode);

// Nothing staged: ranks copy out of and into each other's buffers, themselves where those are mapped, else
// through the kernel. False, and nothing done, on all ranks when some rank can't reach a buffer that it needs.
// `is_overwriting`: takers overwrite what peers may still want to read (alltoall in place), which only
// staging can do.
bool run_zero_copy(node_group& group, workspace& work, const collective_shape& shape, store_mode staging_mode, bool is_overwriting);

}  // namespace isthmus::shm
