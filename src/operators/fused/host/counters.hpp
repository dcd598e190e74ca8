// Counters that the ranks of a host plan use to synchronize: one line of monotonic counters per rank in the
// symmetric heap. Waits on them are bounded and detect failures.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "failure/wait.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

// Only its own rank writes it.
struct alignas(64) counter_line {
  std::atomic<std::uint64_t> ready;          // rows published since the plan was created
  std::atomic<std::uint64_t> block;          // id of the heap block that holds them, or 0 for the plan's stage
  std::atomic<std::uint64_t> offset;         // in bytes, from the start of that block
  std::atomic<std::uint64_t> consumed_runs;  // runs for which this rank has read all rows of its peers
  std::atomic<std::uint64_t> failed;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "ranks of other processes read them");

class host_counters {
 public:
  // Collective. Allocates the lines and, if stage_bytes > 0, a stage of that size on every rank.
  host_counters(communicator& owner, std::uint64_t stage_bytes);

  counter_line& line(int rank) const { return *static_cast<counter_line*>(m_lines.address(rank)); }
  std::byte* stage(int rank) const { return static_cast<std::byte*>(m_stage->address(rank)); }

  // Waits until `counter` of `peer` is at least `value`.
  // Errors: throws error (TIMEOUT, REMOTE, ABORTED).
  void wait(int peer, const std::atomic<std::uint64_t>& counter, std::uint64_t value,
            const char* purpose) const;
  // Waits until `ready` returns true. `peer` and `purpose` are used in error messages.
  template <typename Ready>
  void wait_until(Ready&& ready, int peer, const char* purpose) const {
    for (bounded_wait wait_loop(*this, peer, purpose); !ready();) wait_loop.pause();
  }
  void wait_until_consumed(std::uint64_t run) const;
  // Makes the waits of all other ranks fail.
  void fail() const noexcept;

 private:
  class bounded_wait {
   public:
    bounded_wait(const host_counters& counters, int peer, const char* purpose)
        : m_counters(counters), m_peer(peer), m_purpose(purpose) {}
    void pause();

   private:
    const host_counters& m_counters;
    int m_peer;
    const char* m_purpose;
    backoff m_backoff{200, std::chrono::milliseconds(1)};  // yields briefly: products need the cores
  };

  communicator& m_owner;
  peer_block m_lines;
  std::optional<peer_block> m_stage;
};

}  // namespace isthmus::fused
