// The algorithms: what each collective makes of flows.
#pragma once

#include <isthmus/backend.h>

#include "backends/ucx/ucx_state.hpp"
#include "base/block_map.hpp"

namespace isthmus::ucx {

// In the order of the enumeration; NULL-terminated.
extern const char* const algorithm_names[];
enum class algorithm { direct, two_shot, tree, chain, ring };

// NULL, or why the algorithm cannot do the operation.
const char* unsupported_reason(const isthmus_operation& operation, const char* name, int size, std::uint64_t chunk_bytes);

// Not for messages.
void run_collective(ucx_state& state, const isthmus_operation& operation, const char* name);

// reductions.cpp: every sum is of all contributions in the order of the ranks, rounded once.
void reduce_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks);
// `by_ring`: the results go round, else from each rank to all.
void reduce_two_shot(ucx_state& state, const isthmus_operation& operation, const block_map& blocks, bool by_ring);
void reduce_tree(ucx_state& state, const isthmus_operation& operation);

// Blocks that go round the ring of ranks: each rank passes on what it has of a block.
class ring_exchange {
 public:
  // `all`: this rank's buffer; at[r]: where rank r's block is in it. The own one is there up to `own_limit`.
  ring_exchange(ucx_state& state, message_kind kind, std::byte* all, const std::vector<block>& at);
  // What of the own block may leave, in bytes, and what of the others' has come. True when that is more.
  bool step(std::uint64_t own_limit);

 private:
  std::vector<peer_flow*> m_send_flows, m_recv_flows;
};

// Every rank's block, of equal length, in all[0 .. size), at log2(size) steps. Own block in place before.
void gather_by_doubling(ucx_state& state, std::byte* all, std::uint64_t block_bytes);

}  // namespace isthmus::ucx
