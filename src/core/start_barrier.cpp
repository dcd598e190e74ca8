#include "core/start_barrier.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <span>
#include <utility>

namespace isthmus {

// Counts the announcements of each phase. Collectives have one counter per member, and messages have two per pair.
struct start_barrier::shared_state {
  shared_state(const std::array<std::uint64_t, 2>& id, std::size_t members)
      : token(id), size(members), counters(2 * (members + 2 * members * members)) {}

  counter* collectives(phase reached) { return &counters[reached * (size + 2 * size * size)]; }
  counter* messages(phase reached, isthmus_collective side, std::size_t sender, std::size_t receiver) {
    const std::size_t table = side == ISTHMUS_SEND ? 0 : 1;
    return collectives(reached) + size + (table * size + sender) * size + receiver;
  }

  const std::array<std::uint64_t, 2> token;
  const std::size_t size;
  std::vector<counter> counters;
};

start_barrier::start_barrier(const membership& ranks) {
  const auto process_of = [&](int rank) { return ranks.process_of[static_cast<std::size_t>(rank)]; };
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (rank == ranks.rank) m_index = m_members.size();
    if (process_of(rank) == process_of(ranks.rank)) m_members.push_back(rank);
  }
  static auto& mutex = *new std::mutex;
  static auto& states = *new std::vector<std::weak_ptr<shared_state>>;
  const std::lock_guard lock(mutex);
  std::erase_if(states, [](const auto& each) { return each.expired(); });
  for (const auto& each : states)
    if (auto state = each.lock(); state && state->token == ranks.token) m_state = std::move(state);
  if (!m_state) {
    m_state = std::make_shared<shared_state>(ranks.token, m_members.size());
    states.push_back(m_state);
  }
}

bool start_barrier::awaited::is_met() const noexcept {
  return std::all_of(counters, counters + n, [this](const counter& each) {
    return each.value.load(std::memory_order_acquire) >= count;
  });
}

void start_barrier::announce(phase reached, const isthmus_operation* operations, std::size_t n) {
  const auto add_one = [](counter& own) { return 1 + own.value.fetch_add(1, std::memory_order_acq_rel); };
  for (const isthmus_operation& operation : std::span(operations, n)) {
    const isthmus_collective side = operation.collective;
    if (side != ISTHMUS_SEND && side != ISTHMUS_RECV) {
      counter* const counters = m_state->collectives(reached);
      m_awaited.push_back({side, counters, 0, m_members.size(), add_one(counters[m_index])});
      continue;
    }
    const auto member = std::ranges::find(m_members, operation.root);
    const auto peer = static_cast<std::size_t>(member - m_members.begin());
    if (member == m_members.end() || peer == m_index) continue;
    const auto [sender, receiver] = side == ISTHMUS_SEND ? std::pair(m_index, peer) : std::pair(peer, m_index);
    const isthmus_collective other_side = side == ISTHMUS_SEND ? ISTHMUS_RECV : ISTHMUS_SEND;
    m_awaited.push_back({side, m_state->messages(reached, other_side, sender, receiver), peer, 1,
                         add_one(*m_state->messages(reached, side, sender, receiver))});
  }
}

bool start_barrier::is_any_met() const noexcept { return std::ranges::any_of(m_awaited, &awaited::is_met); }
bool start_barrier::are_all_met() const noexcept { return std::ranges::all_of(m_awaited, &awaited::is_met); }

start_barrier::missing_peers start_barrier::missing() const {
  for (const awaited& each : m_awaited) {
    missing_peers missing{each.collective, {}};
    for (std::size_t i = 0; i < each.n; ++i)
      if (each.counters[i].value.load(std::memory_order_acquire) < each.count)
        missing.ranks.push_back(m_members[each.first_member + i]);
    if (!missing.ranks.empty()) return missing;
  }
  return {};
}

}  // namespace isthmus
