#include "backends/shm/stores.hpp"

#include <algorithm>
#include <bit>

namespace isthmus::shm {
namespace {

constexpr std::uint32_t min_pause = 16, max_pause = 1024;  // calls
constexpr std::uint32_t first_pause_of_large_calls = 2;    // calls
constexpr int large_bits = 21;                             // large: 1 MiB or more
constexpr std::uint32_t timed_calls = 3;                   // in each mode

std::size_t bytes_to_next_line(const void* pointer) {
  return (line_bytes - reinterpret_cast<std::uintptr_t>(pointer) % line_bytes) % line_bytes;
}

// Copies whole lines with streaming stores, and the bytes before the first and after the last whole line
// with cached stores.
void copy_streaming(copy_range range, cpu::copy_function copy_lines) {
  const std::size_t head = std::min(range.bytes, bytes_to_next_line(range.destination));
  if (head > 0) std::memcpy(range.destination, range.source, head);
  range = {range.destination + head, range.source + head, range.bytes - head};
  const std::size_t body_bytes = range.bytes / line_bytes * line_bytes;
  copy_lines(&range, 1, body_bytes, store_mode::streaming);
  if (body_bytes < range.bytes)
    std::memcpy(range.destination + body_bytes, range.source + body_bytes, range.bytes - body_bytes);
}

}  // namespace

void copy_interleaved(std::span<const copy_range> ranges, store_mode mode) noexcept {
  const cpu::copy_function copy_lines = cpu::kernels().copy_lines;
  while (!ranges.empty()) {
    const auto group = ranges.first(std::min(cpu::max_copy_streams, ranges.size()));
    ranges = ranges.subspan(group.size());
    std::size_t common_bytes = group[0].bytes;
    bool is_aligned = true;
    for (const copy_range& each : group) {
      common_bytes = std::min(common_bytes, each.bytes);
      is_aligned &= bytes_to_next_line(each.destination) == 0;
    }
    common_bytes = mode == store_mode::cached || is_aligned ? common_bytes / line_bytes * line_bytes : 0;
    if (common_bytes > 0) copy_lines(group.data(), group.size(), common_bytes, mode);
    for (const copy_range& each : group) {
      const copy_range rest{each.destination + common_bytes, each.source + common_bytes,
                            each.bytes - common_bytes};
      if (rest.bytes == 0) continue;
      if (mode == store_mode::streaming)
        copy_streaming(rest, copy_lines);
      else
        std::memcpy(rest.destination, rest.source, rest.bytes);
    }
  }
}

// ---- choice of the store mode --------------------------------------------------------------------------

store_mode store_chooser::begin(isthmus_collective collective, std::uint64_t bytes, int timing_rank) {
  const int size_bits = static_cast<int>(std::bit_width(bytes));
  const std::size_t index = hint_index(static_cast<std::size_t>(collective), size_bits);
  m_hint = &m_group.header(timing_rank).store_hints[index];
  m_trial = nullptr;
  if (m_group.rank() == timing_rank) {
    if (m_trials.empty()) m_trials.resize(hint_count);
    m_trial = &m_trials[index];
    if (m_trial->pause_calls == 0) start_class(static_cast<std::size_t>(collective), size_bits);
    if (m_trial->phase == trial_phase::settling && has_settled(*m_trial))
      enter_phase(*m_trial, trial_phase::timing_other);
    if (is_timed(*m_trial)) m_begin = m_time_source();
  }
  return m_hint->load(std::memory_order_relaxed) == hint_cached ? store_mode::cached : store_mode::streaming;
}

void store_chooser::end() {
  if (m_trial == nullptr) return;
  trial_state& trial = *m_trial;
  ++trial.phase_calls;
  switch (trial.phase) {
    case trial_phase::pausing:  // the previous trial may have switched the mode
      if (trial.phase_calls == 1) await_settled_slots(trial);
      if (trial.phase_calls >= trial.pause_calls && has_settled(trial))
        enter_phase(trial, trial_phase::timing_current);
      break;
    case trial_phase::timing_current:  // the minimum over a few calls filters out disturbances
      trial.current_duration = std::min(trial.current_duration, m_time_source() - m_begin);
      if (trial.phase_calls < timed_calls) break;
      switch_mode();
      enter_phase(trial, trial_phase::switching);
      break;
    case trial_phase::switching:  // peers may have begun this call in the previous mode
      await_settled_slots(trial);
      enter_phase(trial, trial_phase::settling);
      break;
    case trial_phase::settling: break;
    case trial_phase::timing_other:
      trial.other_duration = std::min(trial.other_duration, m_time_source() - m_begin);
      if (trial.phase_calls == timed_calls) finish_trial(trial);
      break;
  }
}

// Only the timing rank calls this, so the hints are its own.
void store_chooser::start_class(std::size_t collective, int size_bits) {
  m_trial->pause_calls = min_pause;
  for (int smaller = size_bits - 1; smaller > 0; --smaller) {
    const std::size_t index = hint_index(collective, smaller);
    const trial_state& smaller_trial = m_trials[index];
    if (smaller_trial.pause_calls == 0) continue;
    m_hint->store(m_group.header(m_group.rank()).store_hints[index].load(std::memory_order_relaxed),
                  std::memory_order_relaxed);
    if (is_in_other_mode(smaller_trial)) switch_mode();
    return;
  }
  if (size_bits >= large_bits) m_trial->pause_calls = first_pause_of_large_calls;
}

bool store_chooser::is_in_other_mode(const trial_state& trial) {
  return trial.phase != trial_phase::pausing && trial.phase != trial_phase::timing_current;
}

bool store_chooser::is_timed(const trial_state& trial) {
  return trial.phase == trial_phase::timing_current || trial.phase == trial_phase::timing_other;
}

void store_chooser::await_settled_slots(trial_state& trial) const {
  trial.settled_sequence = m_group.next_sequence_number() + m_group.sizes().depth;
}

bool store_chooser::has_settled(const trial_state& trial) const {
  return m_group.next_sequence_number() >= trial.settled_sequence;
}

void store_chooser::enter_phase(trial_state& trial, trial_phase next) {
  trial.phase = next;
  trial.phase_calls = 0;
}

void store_chooser::finish_trial(trial_state& trial) {
  // Requires a clear difference, because a few samples are noisy.
  const bool is_better = 10 * trial.other_duration < 9 * trial.current_duration;
  if (!is_better) switch_mode();
  // The longer a mode has been faster, the less often the other mode is tried.
  trial = {.pause_calls = is_better ? min_pause : std::clamp(2 * trial.pause_calls, min_pause, max_pause)};
}

void store_chooser::switch_mode() {
  const auto previous = m_hint->load(std::memory_order_relaxed);
  m_hint->store(previous == hint_cached ? hint_streaming : hint_cached, std::memory_order_relaxed);
}

}  // namespace isthmus::shm
