// Memory that the ranks of a device plan share in the symmetric heap: flags that their streams use to wait for
// each other, used as sequence numbers (device/signal_channel.hpp), and a stage for rows outside the symmetric
// heap or for partial sums.
#pragma once

#include <cstdint>
#include <optional>

#include "device/signal_channel.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

class shared_memory {
 public:
  // Collective. Flags are initialized to 0.
  shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes);

  // Returns the flag of `owner` in which `writer` counts the steps of its rows or sums that can be fetched.
  std::uint32_t* ready(int owner, int writer) const { return m_channel.ready(owner, 0, writer); }
  // Returns the flag of `owner` in which `reader` counts the runs whose data it has fetched completely.
  std::uint32_t* done(int owner, int reader) const { return m_channel.acknowledgement(owner, 0, reader); }
  std::byte* stage(int rank) const { return static_cast<std::byte*>(m_stage->address(rank)); }

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
