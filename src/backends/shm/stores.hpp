// Copies with cached or streaming stores, and the choice between them at run time.
#pragma once

#include <isthmus/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backends/shm/node_group.hpp"
#include "kernels/kernels.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace isthmus::shm {

using cpu::copy_range;
using cpu::store_mode;

// Orders streaming stores before later stores.
#if defined(__SSE2__)
inline void streaming_fence() noexcept { _mm_sfence(); }
#else
inline void streaming_fence() noexcept {}
#endif

// Acquires exclusive ownership of a line. For baseline processors, compilers emit only a prefetch for reading.
#if defined(__x86_64__)
inline void prefetch_to_write(const void* line) noexcept { __asm__ __volatile__("prefetchw (%0)" ::"r"(line)); }
#else
inline void prefetch_to_write(const void* line) noexcept { __builtin_prefetch(line, 1); }
#endif

// Copies all ranges, interleaving a few of them line by line. A core that reads several distant streams at once
// has more cache misses in flight than a core that reads one stream after the other.
void copy_interleaved(std::span<const copy_range> ranges, store_mode mode) noexcept;

// Does nothing if source and destination are the same, as in in-place operations.
inline void copy(void* destination, const void* source, std::size_t bytes, store_mode mode) noexcept {
  if (destination == source || bytes == 0) return;
  if (mode == store_mode::cached) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const copy_range range{static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes};
  copy_interleaved({&range, 1}, mode);
}

// ---- choice of the store mode --------------------------------------------------------------------------

// Chooses between cached and streaming stores at run time.
//
// The faster mode depends on whether the ranks' cores share a cache, and a hypervisor can move virtual cores
// within seconds. One rank, the timing rank, therefore times both modes periodically and publishes a hint. A
// rank that has not seen the hint yet uses the other mode. Results and protocol do not depend on the mode.
// The timing rank is a receiver, because the cost of a mode is incurred by readers, and a rank that only
// stages finishes earlier.
class store_chooser {
 public:
  using clock = std::chrono::steady_clock;

  explicit store_chooser(node_group& group, clock::time_point (*time_source)() = clock::now)
      : m_group(group), m_time_source(time_source) {}

  // Begin and end one adaptive call. `bytes` and `timing_rank` must be equal on all ranks.
  store_mode begin(isthmus_collective collective, std::uint64_t bytes, int timing_rank);
  void end();

 private:
  // Phases of a trial (one trial per collective and size class): pause, time a few calls in the current mode,
  // switch the mode, wait until every slot has been written in the new mode, and time a few calls. The wait is
  // needed because the location of a slot's lines still depends on the previous mode at the first writes. The
  // pause is at least as long as this wait.
  enum class trial_phase : std::uint8_t { pausing, timing_current, switching, settling, timing_other };
  // The first call of a size class is in the mode that the nearest smaller class of the collective uses outside of
  // trials, because large calls are slow and often few.
  struct trial_state {
    std::uint32_t pause_calls = 0;  // 0: this rank has not been the timing rank of such a call
    trial_phase phase = trial_phase::pausing;
    std::uint32_t phase_calls = 0;  // calls so far in this phase
    // first sequence number at which all slots have been written in the mode of this phase
    std::uint64_t settled_sequence = 0;
    clock::duration current_duration = not_timed, other_duration = not_timed;
  };
  // small enough to multiply without overflow
  static constexpr clock::duration not_timed = clock::duration::max() / 16;

  static bool is_in_other_mode(const trial_state& trial);
  static bool is_timed(const trial_state& trial);
  void start_class(std::size_t collective, int size_bits);
  void await_settled_slots(trial_state& trial) const;
  bool has_settled(const trial_state& trial) const;
  static void enter_phase(trial_state& trial, trial_phase next);
  void finish_trial(trial_state& trial);
  void switch_mode();

  node_group& m_group;
  clock::time_point (*m_time_source)();
  std::vector<trial_state> m_trials;  // by hint index; empty until this rank is a timing rank
  store_hint* m_hint = nullptr;
  trial_state* m_trial = nullptr;  // of the current call, if this rank is its timing rank
  clock::time_point m_begin;
};

}  // namespace isthmus::shm
