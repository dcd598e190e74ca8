// The order in which a rank's large blocks leave for its peers.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/ucx/ucx_state.hpp"

namespace isthmus::ucx {

// In turn k of n - 1 a rank sends to the k-th rank after it and hears from the k-th one before it, so that one
// flow at a time goes into each link: where those of all peers meet, some fall behind. A turn moves a window of
// pieces; round after round all blocks come on together, as sums need it. The next turn begins once a part of
// what this one brings has come: what has been sent says nothing, since the kernel's buffers take it long
// before the wire does. The rest hides the time on the way.
class pairwise_schedule {
 public:
  explicit pairwise_schedule(const ucx_state& state);
  // The flow of a turn, 1 .. size - 1, if there is a block. What is sent waits for its turn from then on.
  void sends(int turn, peer_flow& sent);
  void receives(int turn, const peer_flow& received);
  // True when more may leave.
  bool step();

 private:
  std::uint64_t end_of(const peer_flow& moving, std::uint64_t round) const;
  bool has_come(std::uint64_t turn) const;

  std::uint64_t m_step_bytes, m_slack_bytes;  // bytes of a turn, and of it those that need not have come
  std::vector<peer_flow*> m_send_flows;
  std::vector<const peer_flow*> m_recv_flows;
  std::uint64_t m_next_step = 0, m_end_step = 0;  // turns, counted through all rounds
};

}  // namespace isthmus::ucx
