// The ucx backend, and the algorithms of its collectives, expressed as flows.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <vector>

#include "backends/ucx/ucx_state.hpp"
#include "base/block_map.hpp"

namespace isthmus {

// Collectives between nodes over UCX (TCP, InfiniBand, shared memory), on host or device buffers.
//
// Blocking: each call returns when this rank's part is complete.
// The ranks exchange UCX addresses through the communicator's bootstrap.
const isthmus_backend* ucx_backend() noexcept;

}  // namespace isthmus

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

// Pairwise schedule for exchanges in which every rank has data for every other rank.
//
// In step k of 1 to n - 1, a rank sends to rank r + k and receives from rank r - k. Each link then carries one
// flow at a time; if the flows of all peers shared a link, some of them would fall behind.
//
// A step transfers one window of chunks per block. The schedule repeats in rounds, so that all blocks progress
// together. Reductions require this. The next step starts when part of the incoming data of this step has
// arrived. Sent data is not a suitable criterion, because the kernel buffers it long before it is on the wire.
// Data that is still in transit hides the network latency.
class pairwise_schedule {
 public:
  explicit pairwise_schedule(const ucx_state& state);
  // Adds the flow of a step in 1 to size - 1, if that step has a block. A send flow is blocked until
  // its step starts.
  void add_send(int step, peer_flow& send_flow);
  void add_receive(int step, const peer_flow& recv_flow);
  // Starts the steps that are due. Returns true if more data may be sent.
  bool advance();

 private:
  std::uint64_t end_of_round(const peer_flow& step_flow, std::uint64_t round) const;
  bool has_arrived(std::uint64_t step) const;

  std::uint64_t m_step_bytes,
      m_slack_bytes;  // bytes of a step, and those that may still be in transit when the next step starts
  std::vector<peer_flow*> m_send_flows;
  std::vector<const peer_flow*> m_recv_flows;
  std::uint64_t m_next_step = 0, m_end_step = 0;  // steps, counted across all rounds
};

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
