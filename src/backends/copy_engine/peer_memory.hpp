// The memory that the ranks share: signals in host memory, and staging areas in the symmetric heap.
//
// A rank offers data in three slots: two halves of its staging area, used alternately, and the user buffer.
// Flags are used as tags (device/signal_channel.hpp): `ready` contains the call's tag. A nonzero
// acknowledgement flag means pending: data was offered, and the peer is not finished with it.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/signal_channel.hpp"
#include "memory/signal_memory.hpp"

namespace isthmus::copy_engine {

enum class transfer_slot : std::uint8_t { staging_even, staging_odd, direct };
constexpr transfer_slot all_slots[] = {transfer_slot::staging_even, transfer_slot::staging_odd,
                                       transfer_slot::direct};
constexpr int max_ranks = 64;
constexpr std::uint64_t alignment = 256;

constexpr transfer_slot staging_slot(std::uint64_t use_count) {
  return use_count % 2 == 0 ? transfer_slot::staging_even : transfer_slot::staging_odd;
}

class peer_memory {
 public:
  static constexpr signal_channel::layout flags{std::size(all_slots), max_ranks, 1};

  peer_memory() = default;
  // `staging`: a block of bytes_for(staging_bytes).
  peer_memory(signal_memory signals, const isthmus_heap_block& staging, std::uint64_t staging_bytes)
      : m_signals(std::move(signals)),
        m_channel(m_signals.blocks(), flags),
        m_staging(staging.peers, staging.peers + m_channel.size()),
        m_slot_bytes(slot_bytes_of(staging_bytes)) {}

  bool is_open() const { return m_channel.is_open(); }
  static std::uint64_t bytes_for(std::uint64_t staging_bytes) {
    return std::max(2 * slot_bytes_of(staging_bytes), alignment);
  }

  const signal_channel& channel() const { return m_channel; }
  std::uint32_t* pending(int owner, transfer_slot slot, int peer) const {
    return m_channel.acknowledgement(owner, static_cast<std::size_t>(slot), peer);
  }
  std::uint32_t* ready(int owner, transfer_slot slot, int peer) const {
    return m_channel.ready(owner, static_cast<std::size_t>(slot), peer);
  }

  // Returns the staging slot of rank `owner`. Precondition: slot is not `direct`.
  std::byte* staging(int owner, transfer_slot slot) const {
    return static_cast<std::byte*>(m_staging[static_cast<std::size_t>(owner)]) +
           (slot == transfer_slot::staging_odd ? m_slot_bytes : 0);
  }
  std::uint64_t slot_bytes() const { return m_slot_bytes; }
  // Never reuses the signals: a stuck stream may still write to them.
  void abandon_signals() noexcept { m_signals.abandon(); }

 private:
  static std::uint64_t slot_bytes_of(std::uint64_t staging_bytes) {
    return staging_bytes / 2 / alignment * alignment;
  }

  signal_memory m_signals;
  signal_channel m_channel;
  std::vector<void*> m_staging;  // of each rank
  std::uint64_t m_slot_bytes = 0;
};

}  // namespace isthmus::copy_engine
