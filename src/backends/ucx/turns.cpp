#include "backends/ucx/turns.hpp"

#include <algorithm>

namespace isthmus::ucx {

// What a turn must have brought fits into the ring of a combiner, which waits for the turns of all peers.
turns::turns(const session& ranks)
    : m_stretch(ranks.tuned().piece_bytes * ranks.tuned().window),
      m_rest(ranks.tuned().piece_bytes * (ranks.tuned().window - ranks.tuned().window / 4)),
      m_sent(static_cast<std::size_t>(ranks.size() - 1)),
      m_received(m_sent.size()) {}

void turns::sends(int turn, flow& sent) {
  if (m_sent.size() == 1) return;  // nobody to take turns with
  m_sent[static_cast<std::size_t>(turn - 1)] = &sent;
  sent.limit = 0;
  m_end = std::max(m_end, (sent.bytes + m_stretch - 1) / m_stretch * m_sent.size());
}

void turns::receives(int turn, const flow& received) {
  m_received[static_cast<std::size_t>(turn - 1)] = &received;
}

bool turns::step() {
  const std::uint64_t before = m_next;
  for (; m_next < m_end && (m_next == 0 || has_come(m_next - 1)); ++m_next)
    if (flow* const sent = m_sent[m_next % m_sent.size()]) sent->limit = end_of(*sent, m_next / m_sent.size());
  return m_next != before;
}

std::uint64_t turns::end_of(const flow& moving, std::uint64_t round) const {
  return std::min(moving.bytes, (round + 1) * m_stretch);
}

bool turns::has_come(std::uint64_t turn) const {
  const flow* const received = m_received[turn % m_received.size()];
  return received == nullptr || received->completed + m_rest >= end_of(*received, turn / m_received.size());
}

}  // namespace isthmus::ucx
