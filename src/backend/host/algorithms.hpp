// The algorithms. Each runs one collective on one rank to its end, or throws failure. docs/host_backend.md
// has what each moves and when it is the best.
#pragma once

#include <vector>

#include "backend/host/shape.hpp"
#include "backend/host/team.hpp"

namespace isthmus::host {

// Memory of a rank that outlives single operations, so that none allocates.
struct workspace {
  std::vector<std::byte> bytes;
  std::vector<const void*> sources;
  std::vector<std::byte*> destinations;
};

// Writes of an operation go past the cache when all ranks together write more than it holds.
inline bool streams(const team& team, const shape& s) {
  return s.recv_bytes() * static_cast<std::uint64_t>(team.size()) > team.tuned().streaming_bytes;
}
void copy(void* destination, const void* source, std::uint64_t bytes, bool streaming);

// Data and flag in one cache line. Every block must fit: see packet_block_bytes.
void run_packet(team& team, workspace& work, const shape& s);
std::uint64_t packet_block_bytes(const geometry& sizes, int size, bool per_destination);
void run_barrier(team& team);

// Contributors stage, takers read every contribution; pipelined chunk by chunk.
void run_one_shot(team& team, workspace& work, const shape& s);

// Reduce-scatter and then gather, pipelined chunk by chunk; for allreduce and reduce.
void run_two_shot(team& team, workspace& work, const shape& s);

// Nothing staged: ranks read and write each other's buffers. False, and nothing done, on all ranks when
// some rank can't reach a buffer that it needs. `updates_in_place`: takers overwrite what peers may still
// want to read (alltoall in place), which only staging can do.
bool run_direct(team& team, workspace& work, const shape& s, bool updates_in_place);

}  // namespace isthmus::host
