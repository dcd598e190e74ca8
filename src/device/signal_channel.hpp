// Flags with which the streams of a communicator's ranks wait for each other. They are words in memory that all
// ranks can access (memory/signal_memory.hpp), with the same layout on every rank. One rank's stream writes a flag of a
// peer, and the peer's stream waits for it. The host can read all flags, and write them to release streams.
//
// Flags:
//   For each slot (a location in which data is offered) and each peer, a rank owns two flags:
//     ready            set by the peer: the peer has data for the owner in this slot, or room for data
//     acknowledgement  changed by the peer: it has finished with the data that the owner offered
//   One additional word contains the rank of a peer that aborted plus 1; 0: none.
//
// Use as tags: `ready` contains the call's tag until the owner's stream, which waits for exactly this tag,
//   clears it. The owner sets the acknowledgement before it signals the peer, and the peer clears it. All flags
//   are zero between calls, in any order of calls, so captured graphs can be replayed. The owner reuses a slot
//   only after the acknowledgement has been cleared, so skewed calls are safe. A rank that expects a different
//   tag (another size or location) does not continue, so a mismatch writes no data.
//
// Use as counters: during a run, `ready` counts what the peer has delivered, and waits use "at least". The owner clears
//   the count after its last wait of the run. The acknowledgement flag of the peer is 1 if the owner has room. The peer
//   waits for it and clears it before it delivers, and the owner sets it at the end of the run. The flags have the same
//   values before and after each run, so captured graphs can be replayed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace isthmus {

class signal_channel {
 public:
  struct layout {
    std::size_t slots = 1;
    std::size_t peers = 0;   // maximum number
    std::size_t stride = 1;  // distance of two flags in words; 32 puts them into different cache lines
    constexpr std::size_t words() const { return (2 * slots * peers + 1) * stride; }
    constexpr std::uint64_t bytes() const { return words() * sizeof(std::uint32_t); }
  };

  signal_channel() = default;
  // `blocks`: the zero-initialized block of each rank, at its address in this process.
  signal_channel(std::span<void* const> blocks, const layout& flag_layout);

  bool is_open() const { return !m_blocks.empty(); }
  int size() const { return static_cast<int>(m_blocks.size()); }

  // Returns the addresses of flags of rank `owner` in this process.
  std::uint32_t* acknowledgement(int owner, std::size_t slot, int peer) const {
    return block(owner) + acknowledgement_offset(slot, peer);
  }
  std::uint32_t* ready(int owner, std::size_t slot, int peer) const {
    return block(owner) + ready_offset(slot, peer);
  }
  std::uint32_t* abort_word(int owner) const {
    return block(owner) + 2 * m_layout.slots * m_layout.peers * m_layout.stride;
  }
  std::uint32_t* block(int owner) const { return m_blocks[static_cast<std::size_t>(owner)]; }

  // For the host. Thread safety: any thread may call them at any time.
  static std::uint32_t read(const std::uint32_t* flag) {
    return std::atomic_ref(*const_cast<std::uint32_t*>(flag)).load(std::memory_order_acquire);
  }
  static void write(std::uint32_t* flag, std::uint32_t value) {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
  }
  // Returns the rank that aborted, according to the abort word of `owner`.
  std::optional<int> aborted_rank(int owner) const;
  // Writes the rank that aborted to the abort word of all peers of `rank`: the one in its own abort word, otherwise
  // `rank`. A later notification replaces an earlier one.
  void notify_abort(int rank) const;

 private:
  std::size_t acknowledgement_offset(std::size_t slot, int peer) const {
    return (slot * m_layout.peers + static_cast<std::size_t>(peer)) * m_layout.stride;
  }
  std::size_t ready_offset(std::size_t slot, int peer) const {
    return m_layout.slots * m_layout.peers * m_layout.stride + acknowledgement_offset(slot, peer);
  }

  std::vector<std::uint32_t*> m_blocks;
  layout m_layout;
};

// Releases the calls that wait in the queue of a stream, one after the other, for at most 20 ms. For on_abort of a watch.
// `current` returns the number of the call that the stream executes, or 0. It is also 0 between two calls, for as long as
// other work of the stream takes. `release` writes the flags that the call waits for.
void release_queued_calls(const std::function<std::uint32_t()>& current,
                          const std::function<void(std::uint32_t)>& release);

// Returns true if a stream executes call `number` without interruption for `duration_s`. For on_stuck of a watch: launches of a
// graph repeat the number, and periodic checks can miss that it is 0 for some microseconds between two of them.
bool is_executing(const std::function<std::uint32_t()>& current, std::uint32_t number, double duration_s);

}  // namespace isthmus
