// Pairwise schedule for exchanges in which every rank has data for every other rank.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/ucx/ucx_state.hpp"

namespace isthmus::ucx {

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

}  // namespace isthmus::ucx
