// The memory that the ranks share for signals and staging: one block of the symmetric heap with the same layout
// on every rank.
//
// A rank offers data in three slots: two halves of its staging area, used alternately, and the user buffer.
// Flags are used as tags (device/signal_channel.hpp): `ready` contains the call's tag. A nonzero
// acknowledgement flag means pending: data was offered, and the peer is not finished with it.
#pragma once

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/signal_channel.hpp"

namespace isthmus::copy_engine {

enum class transfer_slot : std::uint8_t { staging_even, staging_odd, direct };
constexpr transfer_slot all_slots[] = {transfer_slot::staging_even, transfer_slot::staging_odd,
                                       transfer_slot::direct};
constexpr int max_ranks = 64;
constexpr std::uint64_t signal_bytes = 4096;
constexpr std::uint64_t alignment = 256;

constexpr transfer_slot staging_slot(std::uint64_t use_count) {
  return use_count % 2 == 0 ? transfer_slot::staging_even : transfer_slot::staging_odd;
}

class peer_memory {
 public:
  static constexpr signal_channel::layout flags{std::size(all_slots), max_ranks, 1};
  static_assert(flags.words() * sizeof(std::uint32_t) <= signal_bytes);

  peer_memory() = default;
  // `staging_bytes`: size of both slots of a rank together.
  peer_memory(const isthmus_heap_block& shared, int size, std::uint64_t staging_bytes)
      : m_channel({shared.peers, static_cast<std::size_t>(size)}, flags),
        m_slot_bytes(slot_bytes_of(staging_bytes)) {}

  bool is_open() const { return m_channel.is_open(); }
  static std::uint64_t bytes_for(std::uint64_t staging_bytes) {
    return signal_bytes + 2 * slot_bytes_of(staging_bytes);
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
    return reinterpret_cast<std::byte*>(m_channel.block(owner)) + signal_bytes +
           (slot == transfer_slot::staging_odd ? m_slot_bytes : 0);
  }
  std::uint64_t slot_bytes() const { return m_slot_bytes; }

 private:
  static std::uint64_t slot_bytes_of(std::uint64_t staging_bytes) {
    return staging_bytes / 2 / alignment * alignment;
  }

  signal_channel m_channel;
  std::uint64_t m_slot_bytes = 0;
};

}  // namespace isthmus::copy_engine
