#include "backend/host/store_chooser.hpp"

#include <algorithm>
#include <bit>

namespace isthmus::host {
namespace {

constexpr std::uint32_t shortest_pause = 16, longest_pause = 1024;  // calls
constexpr std::uint32_t timed = 3;
constexpr std::uint32_t until_other = timed + 1;                           // the call before it is not timed
constexpr auto untimed = std::chrono::steady_clock::duration::max() / 16;  // leaves room to compare
constexpr std::uint32_t trial_calls = until_other + timed;                 // after the pause

}  // namespace

store_chooser::store_chooser(team& team) : m_team(team) {
  if (team.rank() == 0) m_trials.assign(wish_kinds, {shortest_pause, 0, untimed, untimed});
}

bool store_chooser::is_timed(const trial& kind) const {
  return kind.call >= kind.pause && kind.call != kind.pause + timed;
}

store store_chooser::begin(isthmus_collective collective, std::uint64_t bytes) {
  const std::size_t kind =
      wish_kind(static_cast<std::size_t>(collective), static_cast<int>(std::bit_width(bytes)));
  m_wish = &m_team.header(0).wishes[kind];
  if (m_team.rank() == 0) {
    m_trial = &m_trials[kind];
    if (m_trial->call == m_trial->pause + timed) swap_form();
    if (is_timed(*m_trial)) m_begin = clock::now();
  }
  return m_wish->load(std::memory_order_relaxed) == wish_cached ? store::cached : store::streaming;
}

void store_chooser::end() {
  if (m_trial == nullptr) return;
  if (is_timed(*m_trial)) {
    // the shortest of a few: what was not disturbed
    clock::duration& shortest = m_trial->call < m_trial->pause + until_other ? m_trial->now : m_trial->other;
    shortest = std::min(shortest, clock::now() - m_begin);
  }
  if (++m_trial->call == m_trial->pause + trial_calls) conclude(*m_trial);
}

void store_chooser::conclude(trial& kind) {
  // clearly better: with a few samples small differences mean nothing
  const bool is_better = 10 * kind.other < 9 * kind.now;
  if (!is_better) swap_form();
  // the longer a form has won, the seldomer the other one costs time
  const std::uint32_t pause = is_better ? shortest_pause : std::min(longest_pause, 2 * kind.pause);
  kind = {pause, 0, untimed, untimed};
}

void store_chooser::swap_form() {
  const auto before = m_wish->load(std::memory_order_relaxed);
  m_wish->store(before == wish_cached ? wish_streaming : wish_cached, std::memory_order_relaxed);
}

}  // namespace isthmus::host
