#include "backends/ucx/pairwise_schedule.hpp"

#include <algorithm>

namespace isthmus::ucx {

// The data that must arrive before the next step fits into the ring of a chunk_reducer, which waits
// for all peers.
pairwise_schedule::pairwise_schedule(const ucx_state& state)
    : m_step_bytes(state.settings().chunk_bytes * state.settings().window),
      m_slack_bytes(state.settings().chunk_bytes * (state.settings().window - state.settings().window / 4)),
      m_send_flows(static_cast<std::size_t>(state.size() - 1)),
      m_recv_flows(m_send_flows.size()) {}

void pairwise_schedule::add_send(int step, peer_flow& send_flow) {
  if (m_send_flows.size() == 1) return;  // a single peer needs no schedule
  m_send_flows[static_cast<std::size_t>(step - 1)] = &send_flow;
  send_flow.limit = 0;
  m_end_step = std::max(m_end_step, (send_flow.bytes + m_step_bytes - 1) / m_step_bytes * m_send_flows.size());
}

void pairwise_schedule::add_receive(int step, const peer_flow& recv_flow) {
  m_recv_flows[static_cast<std::size_t>(step - 1)] = &recv_flow;
}

bool pairwise_schedule::advance() {
  const std::uint64_t previous_step = m_next_step;
  for (; m_next_step < m_end_step && (m_next_step == 0 || has_arrived(m_next_step - 1)); ++m_next_step)
    if (peer_flow* const send_flow = m_send_flows[m_next_step % m_send_flows.size()])
      send_flow->limit = end_of_round(*send_flow, m_next_step / m_send_flows.size());
  return m_next_step != previous_step;
}

std::uint64_t pairwise_schedule::end_of_round(const peer_flow& step_flow, std::uint64_t round) const {
  return std::min(step_flow.bytes, (round + 1) * m_step_bytes);
}

bool pairwise_schedule::has_arrived(std::uint64_t step) const {
  const peer_flow* const recv_flow = m_recv_flows[step % m_recv_flows.size()];
  return recv_flow == nullptr ||
         recv_flow->completed_bytes + m_slack_bytes >= end_of_round(*recv_flow, step / m_recv_flows.size());
}

}  // namespace isthmus::ucx
