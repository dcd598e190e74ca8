// Flags by which the streams of the ranks of one communicator wait for each other: words in memory that all of
// them reach, laid out alike on every rank. One rank's stream writes a flag of a peer, and the peer's stream
// waits for it.
//
// For each slot (a place where data are handed over) and each peer, a rank owns two flags:
//   ready            by the peer: it has data for the owner there, or room for them
//   acknowledgement  by the peer: it has done with what the owner handed over
// They are used in one of two ways.
//   As tags. `ready` holds the call's tag until the owner's stream, which waits for that very tag, clears it.
//   The owner sets the acknowledgement before it tells the peer, and the peer clears it. All flags are zero at
//   rest, whatever the order of calls was, so a captured graph can be replayed. The owner hands the slot over
//   again only when the flag is clear, which makes skewed calls safe; and a rank that expects another tag
//   (another size, another place) never goes on: a mismatch writes nothing. As sequence numbers. Both only
//   grow, modulo 2^32, and are waited for with "at least": nothing needs to be cleared, but a captured graph
//   would repeat its numbers.
// In one more word a peer that gives up says so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/owned.hpp"

namespace isthmus {

class signal_channel {
 public:
  struct layout {
    std::size_t slots = 1;
    std::size_t peers = 0;   // at most
    std::size_t stride = 1;  // words from one flag to the next: 32 keep writers off each other's cache lines
    constexpr std::size_t words() const { return (2 * slots * peers + 1) * stride; }
  };

  signal_channel() = default;
  // `blocks`: of each rank, where this process reaches it; zeros.
  signal_channel(std::span<void* const> blocks, const layout& flag_layout);

  bool is_open() const { return !m_blocks.empty(); }
  int size() const { return static_cast<int>(m_blocks.size()); }
  std::size_t words() const { return m_layout.words(); }

  // Of rank `owner`, at addresses of this process.
  std::uint32_t* acknowledgement(int owner, std::size_t slot, int peer) const {
    return block(owner) + acknowledgement_offset(slot, peer);
  }
  std::uint32_t* ready(int owner, std::size_t slot, int peer) const {
    return block(owner) + ready_offset(slot, peer);
  }
  std::uint32_t* abort_word(int owner) const { return block(owner) + abort_word_offset(); }
  std::uint32_t* block(int owner) const { return m_blocks[static_cast<std::size_t>(owner)]; }

  // Where a flag is among the words of its owner.
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

// The host of one rank beside the streams that wait: it reads the own flags, and writes flags to release them.
// On streams of its own, of the priorities that it is given: drivers put the streams of one priority into few
// queues, where a stream would get stuck behind those that it is to release. Not thread-safe.
class signal_monitor {
 public:
  // Throws isthmus::error.
  signal_monitor(device_driver& driver, int device, std::size_t words,
                 std::initializer_list<stream_priority> priorities);

  // From here on. The channel's shape has the `words`.
  void attach(const signal_channel& channel, int rank);

  // Copies the own flags to the host; false when that took longer than wait_briefly waits.
  bool read();
  // As they were read.
  std::uint32_t acknowledgement(std::size_t slot, int peer) const;
  std::uint32_t ready(std::size_t slot, int peer) const;
  std::uint32_t aborted_peer() const;  // the rank of a peer, plus 1; 0: nobody

  // By every stream of the monitor, whichever gets through.
  void write(std::span<const word_step> steps);
  void notify_abort();
  // For what the monitor was given last, some milliseconds: whether it is done.
  bool wait_briefly();

  // A stream that is stuck may still write to the host's memory: nobody gets it.
  void abandon_memory() noexcept { m_copy.abandon(); }

 private:
  device_driver& m_driver;
  int m_device;
  std::vector<owned_stream> m_streams;
  owned_event m_done;
  owned_pinned m_copy;
  const signal_channel* m_channel = nullptr;
  int m_rank = 0;
};

}  // namespace isthmus
