#include "backends/host/store_chooser.hpp"

#include <algorithm>
#include <bit>

namespace isthmus::shm {
namespace {

constexpr std::uint32_t shortest_pause = 16, longest_pause = 1024;  // calls
constexpr std::uint32_t timed = 3;                                  // of each form

}  // namespace

store_mode store_chooser::begin(isthmus_collective collective, std::uint64_t bytes, int timing_rank) {
  const std::size_t kind =
      hint_index(static_cast<std::size_t>(collective), static_cast<int>(std::bit_width(bytes)));
  m_hint = &m_group.header(timing_rank).store_hints[kind];
  m_trial = nullptr;
  if (m_group.rank() == timing_rank) {
    if (m_trials.empty()) m_trials.assign(hint_count, trial{.pause = shortest_pause});
    m_trial = &m_trials[kind];
    if (m_trial->at == phase::settling && m_group.next_sequence_number() >= m_trial->settled)
      enter(*m_trial, phase::timing_other);
    if (is_timed(*m_trial)) m_begin = m_now();
  }
  return m_hint->load(std::memory_order_relaxed) == hint_cached ? store_mode::cached : store_mode::streaming;
}

void store_chooser::end() {
  if (m_trial == nullptr) return;
  trial& kind = *m_trial;
  ++kind.calls;
  switch (kind.at) {
    case phase::pausing:
      if (kind.calls == kind.pause) enter(kind, phase::timing_now);
      break;
    case phase::timing_now:  // the shortest of a few: what was not disturbed
      kind.now = std::min(kind.now, m_now() - m_begin);
      if (kind.calls < timed) break;
      swap_form();
      enter(kind, phase::noticing);
      break;
    case phase::noticing:  // the others may have begun this call in the form before
      kind.settled = m_group.next_sequence_number() + m_group.sizes().depth;
      enter(kind, phase::settling);
      break;
    case phase::settling: break;
    case phase::timing_other:
      kind.other = std::min(kind.other, m_now() - m_begin);
      if (kind.calls == timed) conclude(kind);
      break;
  }
}

bool store_chooser::is_timed(const trial& kind) {
  return kind.at == phase::timing_now || kind.at == phase::timing_other;
}

void store_chooser::enter(trial& kind, phase next) {
  kind.at = next;
  kind.calls = 0;
}

void store_chooser::conclude(trial& kind) {
  // clearly better: with a few samples small differences mean nothing
  const bool is_better = 10 * kind.other < 9 * kind.now;
  if (!is_better) swap_form();
  // the longer a form has won, the seldomer the other one costs time
  kind = {.pause = is_better ? shortest_pause : std::min(longest_pause, 2 * kind.pause)};
}

void store_chooser::swap_form() {
  const auto before = m_hint->load(std::memory_order_relaxed);
  m_hint->store(before == hint_cached ? hint_streaming : hint_cached, std::memory_order_relaxed);
}

}  // namespace isthmus::shm
