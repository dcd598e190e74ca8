// Memory that the ranks of a device plan share in the symmetric heap: flags that their streams use to wait for
// each other, used as sequence numbers (device/signal_channel.hpp), and a stage for rows outside the symmetric
// heap or for partial sums.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/communicator.hpp"
#include "device/signal_channel.hpp"

namespace isthmus::fused {

// A block of the symmetric heap, with its address on every rank.
class peer_block {
 public:
  // Collective.
  // Errors: throws UNSUPPORTED if this rank's device cannot access a peer's device.
  peer_block(communicator& owner, std::uint64_t bytes);

  void* own() const { return m_own.get(); }
  const std::vector<void*>& peers() const { return m_peers; }

 private:
  struct release {
    communicator* owner;
    void operator()(void* block) const noexcept;
  };
  std::unique_ptr<void, release> m_own;
  std::vector<void*> m_peers;  // addresses in this process
};

class shared_memory {
 public:
  // Collective. Flags are initialized to 0.
  shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes);

  // Returns the flag of `owner` in which `writer` counts the steps of its rows or sums that can be fetched.
  std::uint32_t* ready(int owner, int writer) const { return m_channel.ready(owner, 0, writer); }
  // Returns the flag of `owner` in which `reader` counts the runs whose data it has fetched completely.
  std::uint32_t* done(int owner, int reader) const { return m_channel.acknowledgement(owner, 0, reader); }
  std::byte* stage(int rank) const {
    return static_cast<std::byte*>(m_stage->peers()[static_cast<std::size_t>(rank)]);
  }

  std::uint64_t stage_bytes() const { return m_stage_bytes; }

  // Releases all waits of this rank's streams after the communicator has failed. The data that they fetch is
  // not used.
  void release_all();

 private:
  int m_rank, m_size;
  std::uint64_t m_stage_bytes;
  peer_block m_flags;
  signal_channel m_channel;
  signal_monitor m_monitor;
  std::optional<peer_block> m_stage;
};

}  // namespace isthmus::fused
