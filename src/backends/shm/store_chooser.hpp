// Through the cache or past it? Which is faster depends on whether the cores of the ranks share a cache, and
// a hypervisor moves virtual cores within seconds. So one rank, the judge, times both forms, now and then, and
// the others follow its wish as soon as they see it. Who has not seen it yet stores in the other form, which
// readers need not know: results and protocol are the same. The judge is a rank that takes, for who only stages
// is done before the readers have paid for the form.
#pragma once

#include <isthmus/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "backends/shm/copy.hpp"
#include "backends/shm/node_group.hpp"

namespace isthmus::shm {

class store_chooser {
 public:
  using clock = std::chrono::steady_clock;

  explicit store_chooser(node_group& group, clock::time_point (*time_source)() = clock::now) : m_group(group), m_time_source(time_source) {}

  // Around each call whose form is free. `bytes` and `judge` are equal on all ranks.
  store_mode begin(isthmus_collective collective, std::uint64_t bytes, int timing_rank);
  void end();

 private:
  // Calls of one kind: a pause, then a few timed as they are; then in the other form some until every slot has
  // been written in it, because the first writes find the slots' lines where the form before left them, and a
  // few timed.
  enum class trial_phase : std::uint8_t { pausing, timing_current, switching, settling, timing_other };
  struct trial_state {
    std::uint32_t pause_calls;
    trial_phase phase = trial_phase::pausing;
    std::uint32_t phase_calls = 0;    // in this phase
    std::uint64_t settled_sequence = 0;  // sequence from which on all slots have been written in the other form
    clock::duration current_duration = untimed, other_duration = untimed;
  };
  static constexpr clock::duration untimed = clock::duration::max() / 16;  // leaves room to compare

  static bool is_timed(const trial_state& trial);
  static void enter_phase(trial_state& trial, trial_phase next);
  void finish_trial(trial_state& trial);
  void switch_mode();

  node_group& m_group;
  clock::time_point (*m_time_source)();
  std::vector<trial_state> m_trials;  // by kind; empty until this rank is a judge
  store_hint* m_hint = nullptr;
  trial_state* m_trial = nullptr;  // of the call under way, where this rank is the judge
  clock::time_point m_begin;
};

}  // namespace isthmus::shm
