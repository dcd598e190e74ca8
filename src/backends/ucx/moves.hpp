// The algorithms: what each collective makes of flows.
#pragma once

#include <isthmus/backend.h>

#include "backends/ucx/session.hpp"
#include "base/block_map.hpp"

namespace isthmus::ucx {

// In the order of the enumeration; NULL-terminated.
extern const char* const algorithm_names[];
enum class algorithm { direct, two_shot, tree, chain, ring };

// NULL, or why the algorithm cannot do the operation.
const char* why_not(const isthmus_operation& operation, const char* name, int size, std::uint64_t piece_bytes);

// Not for messages.
void run_collective(session& ranks, const isthmus_operation& operation, const char* name);

// reductions.cpp: every sum is of all contributions in the order of the ranks, rounded once.
void reduce_direct(session& ranks, const isthmus_operation& operation, const block_map& blocks);
// `by_ring`: the results go round, else from each rank to all.
void reduce_two_shot(session& ranks, const isthmus_operation& operation, const block_map& blocks, bool by_ring);
void reduce_tree(session& ranks, const isthmus_operation& operation);

// Blocks that go round the ring of ranks: each rank passes on what it has of a block.
class round_trip {
 public:
  // `all`: this rank's buffer; at[r]: where rank r's block is in it. The own one is there up to `own_limit`.
  round_trip(session& ranks, kind what, std::byte* all, const std::vector<block>& at);
  // What of the own block may leave, in bytes, and what of the others' has come. True when that is more.
  bool step(std::uint64_t own_limit);

 private:
  std::vector<flow*> m_sent, m_received;
};

// Every rank's block, of equal length, in all[0 .. size), at log2(size) steps. Own block in place before.
void gather_by_doubling(session& ranks, std::byte* all, std::uint64_t block_bytes);

}  // namespace isthmus::ucx
