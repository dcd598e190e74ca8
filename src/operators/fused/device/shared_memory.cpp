#include "operators/fused/device/shared_memory.hpp"

#include <vector>

namespace isthmus::fused {
namespace {

// Flags of different writers do not share cache lines.
signal_channel::layout layout_for(int size) { return {1, static_cast<std::size_t>(size), 32}; }

}  // namespace

shared_memory::shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes)
    : m_rank(owner.ranks().rank),
      m_size(owner.ranks().size),
      m_stage_bytes(stage_bytes),
      m_flags(owner, layout_for(m_size).words() * sizeof(std::uint32_t)),
      m_channel(m_flags.peers(), layout_for(m_size)),
      m_monitor(driver, owner.ranks().device.ordinal, m_channel.words(),
                {stream_priority::high, stream_priority::normal}) {
  const int device = owner.ranks().device.ordinal;
  m_monitor.attach(m_channel, m_rank);
  const owned_stream stream(driver, device, stream_priority::high);
  driver.fill(device, m_flags.own(), 0, m_channel.words() * sizeof(std::uint32_t), stream);
  driver.synchronize(device, stream);
  m_stage.emplace(owner, stage_bytes);  // collective: all flags are zero before any rank writes them
}

void shared_memory::release_all() {
  // Larger than every number that a run still waits for, but small enough that the difference does not wrap.
  constexpr std::uint32_t ahead = std::uint32_t{1} << 30;
  std::vector<word_step> flags;
  for (int peer = 0; peer < m_size; ++peer)
    for (std::uint32_t* flag : {ready(m_rank, peer), done(m_rank, peer)})
      flags.push_back({word_action::write, flag, ahead});
  m_monitor.write(flags);
}

}  // namespace isthmus::fused
