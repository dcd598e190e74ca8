// Flags with which the streams of a communicator's ranks wait for each other. They are words in memory that all
// ranks can access, with the same layout on every rank. One rank's stream writes a flag of a peer, and the
// peer's stream waits for it.
//
// Flags:
//   For each slot (a location in which data is offered) and each peer, a rank owns two flags:
//     ready            set by the peer: the peer has data for the owner in this slot, or room for data
//     acknowledgement  changed by the peer: it has finished with the data that the owner offered
//   One additional word contains the rank of a peer that aborted.
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

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "device/owned.hpp"

namespace isthmus {

class signal_channel {
 public:
  struct layout {
    std::size_t slots = 1;
    std::size_t peers = 0;   // maximum number
    std::size_t stride = 1;  // distance of two flags in words; 32 puts them into different cache lines
    constexpr std::size_t words() const { return (2 * slots * peers + 1) * stride; }
  };

  signal_channel() = default;
  // `blocks`: the zero-initialized block of each rank, at its address in this process.
  signal_channel(std::span<void* const> blocks, const layout& flag_layout);

  bool is_open() const { return !m_blocks.empty(); }
  int size() const { return static_cast<int>(m_blocks.size()); }
  std::size_t words() const { return m_layout.words(); }

  // Returns the addresses of flags of rank `owner` in this process.
  std::uint32_t* acknowledgement(int owner, std::size_t slot, int peer) const {
    return block(owner) + acknowledgement_offset(slot, peer);
  }
  std::uint32_t* ready(int owner, std::size_t slot, int peer) const {
    return block(owner) + ready_offset(slot, peer);
  }
  std::uint32_t* abort_word(int owner) const { return block(owner) + abort_word_offset(); }
  std::uint32_t* block(int owner) const { return m_blocks[static_cast<std::size_t>(owner)]; }

  // Returns the index of a flag in the words of its owner.
  std::size_t acknowledgement_offset(std::size_t slot, int peer) const {
    return (slot * m_layout.peers + static_cast<std::size_t>(peer)) * m_layout.stride;
  }
  std::size_t ready_offset(std::size_t slot, int peer) const {
    return m_layout.slots * m_layout.peers * m_layout.stride + acknowledgement_offset(slot, peer);
  }
  std::size_t abort_word_offset() const { return 2 * m_layout.slots * m_layout.peers * m_layout.stride; }

 private:
  std::vector<std::uint32_t*> m_blocks;
  layout m_layout;
};

// Gives the host of one rank access to the flags while streams wait: it reads the rank's flags, and writes
// flags to release streams. It uses its own streams with the given priorities, because drivers map streams of
// one priority to few hardware queues. There the monitor could be stuck after the streams that it must release.
// Thread safety: none.
class signal_monitor {
 public:
  // Errors: throws isthmus::error.
  signal_monitor(device_driver& driver, int device, std::size_t words,
                 std::initializer_list<stream_priority> priorities);

  // Must be called before the functions below. The channel must have the number of words given
  // to the constructor.
  void attach(const signal_channel& channel, int rank);

  // Copies this rank's flags to the host. Returns false if that took longer than the limit of wait_briefly.
  bool read();
  // Return the values of the most recent read.
  std::uint32_t acknowledgement(std::size_t slot, int peer) const;
  std::uint32_t ready(std::size_t slot, int peer) const;
  std::uint32_t aborted_peer() const;  // rank of the peer that aborted plus 1; 0: none

  // Writes with every stream of the monitor, because some of them may be stuck.
  void write(std::span<const word_step> steps);
  // As write, and waits up to 20 ms until one of the streams has completed it. If none has, adds a stream. Returns whether
  // one has completed.
  bool write_and_wait(std::span<const word_step> steps);
  // Waits for all writes. Only when the streams that they released have ended.
  void synchronize();
  // Writes the rank that aborted to the abort word of all peers: the one that the most recent read() found, otherwise
  // this rank. A later notification replaces an earlier one.
  void notify_abort();
  // Blocking: waits some milliseconds for the most recent operation. Returns whether it has completed.
  bool wait_briefly();

  // Leaks the host memory, because a stuck stream may still write to it.
  void abandon_memory() noexcept { m_copy.abandon(); }

  // Makes later reads, and also later writes, use another stream, because the others may be stuck.
  void add_stream();

 private:
  device_driver& m_driver;
  int m_device;
  std::deque<owned_stream> m_streams;
  owned_event m_done;
  owned_pinned m_copy;
  const signal_channel* m_channel = nullptr;
  int m_rank = 0;
};

}  // namespace isthmus
