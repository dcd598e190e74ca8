#include "backends/ucx/pairwise_schedule.hpp"

#include <algorithm>

namespace isthmus::ucx {

// What a turn must have brought fits into the ring of a combiner, which waits for the turns of all peers.
pairwise_schedule::pairwise_schedule(const ucx_state& state)
    : m_step_bytes(state.settings().chunk_bytes * state.settings().window),
      m_slack_bytes(state.settings().chunk_bytes * (state.settings().window - state.settings().window / 4)),
      m_send_flows(static_cast<std::size_t>(state.size() - 1)),
      m_recv_flows(m_send_flows.size()) {}

void pairwise_schedule::sends(int turn, peer_flow& sent) {
  if (m_send_flows.size() == 1) return;  // nobody to take turns with
  m_send_flows[static_cast<std::size_t>(turn - 1)] = &sent;
  sent.limit = 0;
  m_end_step = std::max(m_end_step, (sent.bytes + m_step_bytes - 1) / m_step_bytes * m_send_flows.size());
}

void pairwise_schedule::receives(int turn, const peer_flow& received) {
  m_recv_flows[static_cast<std::size_t>(turn - 1)] = &received;
}

bool pairwise_schedule::step() {
  const std::uint64_t before = m_next_step;
  for (; m_next_step < m_end_step && (m_next_step == 0 || has_come(m_next_step - 1)); ++m_next_step)
    if (peer_flow* const sent = m_send_flows[m_next_step % m_send_flows.size()]) sent->limit = end_of(*sent, m_next_step / m_send_flows.size());
  return m_next_step != before;
}

std::uint64_t pairwise_schedule::end_of(const peer_flow& moving, std::uint64_t round) const {
  return std::min(moving.bytes, (round + 1) * m_step_bytes);
}

bool pairwise_schedule::has_come(std::uint64_t turn) const {
  const peer_flow* const received = m_recv_flows[turn % m_recv_flows.size()];
  return received == nullptr || received->completed_bytes + m_slack_bytes >= end_of(*received, turn / m_recv_flows.size());
}

}  // namespace isthmus::ucx
