// The memory that the ranks share for signals and staging: one block of the symmetric heap, laid out alike on
// every rank.
//
// Data are handed over in three places: two slots of a rank's staging area, which take turns, and the user's
// own buffer. Flags are used as tags (device/signal_channel.hpp): `ready` holds the call's tag, and an
// acknowledgement that is set is pending: data were handed over, and the peer has not done with them.
#pragma once

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/signal_channel.hpp"

namespace isthmus::copy_engine {

enum class transfer_slot : std::uint8_t { staging_even, staging_odd, direct };
constexpr transfer_slot all_slots[] = {transfer_slot::staging_even, transfer_slot::staging_odd, transfer_slot::direct};
constexpr int max_ranks = 64;
constexpr std::uint64_t signal_bytes = 4096;
constexpr std::uint64_t alignment = 256;

constexpr transfer_slot staging_slot(std::uint64_t use) { return use % 2 == 0 ? transfer_slot::staging_even : transfer_slot::staging_odd; }

class peer_memory {
 public:
  static constexpr signal_channel::layout flags{std::size(all_slots), max_ranks, 1};
  static_assert(flags.words() * sizeof(std::uint32_t) <= signal_bytes);

  peer_memory() = default;
  // `staging_bytes`: of a rank's two slots together.
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

  // Of rank `owner`. Precondition: not direct.
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
