// The algorithms of the collectives, expressed as flows.
#pragma once

#include <isthmus/backend.h>

#include "backends/ucx/ucx_state.hpp"
#include "base/block_map.hpp"

namespace isthmus::ucx {

// In the order of the enumeration, NULL-terminated.
extern const char* const algorithm_names[];
enum class algorithm { direct, two_shot, tree, chain, ring };

// Returns why the algorithm does not support the operation, or NULL if it does. `index`: an index in
// algorithm_names or ISTHMUS_ANY_ALGORITHM.
const char* unsupported_reason(const isthmus_operation& operation, int index, int size,
                               std::uint64_t chunk_bytes);

// Runs any operation except send and recv.
void run_collective(ucx_state& state, const isthmus_operation& operation, int index);

// reductions.cpp. Every reduction combines all contributions in rank order and rounds once.
void reduce_direct(ucx_state& state, const isthmus_operation& operation, const block_map& blocks);
// `uses_ring`: results travel around the ring; otherwise each rank sends its result to all.
void reduce_two_shot(ucx_state& state, const isthmus_operation& operation, const block_map& blocks,
                     bool uses_ring);
void reduce_tree(ucx_state& state, const isthmus_operation& operation);

// Allgather around the ring of ranks: each rank forwards the received part of a block.
class ring_exchange {
 public:
  // `buffer` is this rank's buffer. blocks[r] is the block of rank r in it.
  ring_exchange(ucx_state& state, message_kind kind, std::byte* buffer, const std::vector<block>& blocks);
  // Raises the send limit of this rank's block to `own_limit` bytes, and the limits of other blocks to the
  // bytes that have arrived. Returns true if a limit changed.
  bool advance(std::uint64_t own_limit);

 private:
  std::vector<peer_flow*> m_send_flows, m_recv_flows;
};

// Allgather of equal blocks in log2(size) steps. Before the call, this rank's block must be at its
// position in `buffer`.
void gather_by_doubling(ucx_state& state, std::byte* buffer, std::uint64_t block_bytes);

}  // namespace isthmus::ucx
