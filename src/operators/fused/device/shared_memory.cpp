#include "operators/fused/device/shared_memory.hpp"

#include "base/error.hpp"

namespace isthmus::fused {
namespace {

// Flags of different writers do not share cache lines.
signal_channel::layout layout_for(int size) { return {1, static_cast<std::size_t>(size), 32}; }

}  // namespace

void peer_block::release::operator()(void* block) const noexcept {
  try {
    owner->heap().free(block);
  } catch (const error&) {  // NOLINT(bugprone-empty-catch)
    // The communicator was destroyed first, together with its heap.
  }
}

peer_block::peer_block(communicator& owner, std::uint64_t bytes)
    : m_own(owner.allocate_symmetric(bytes), {&owner}) {
  isthmus_heap_block block{};
  owner.heap().find(m_own.get(), 1, &block, nullptr);
  m_peers.assign(block.peers, block.peers + owner.ranks().size);
  for (std::size_t rank = 0; rank < m_peers.size(); ++rank)
    if (m_peers[rank] == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          fmt::format("fused_plan_create: this rank's device cannot reach memory of rank {}", rank),
          "use ISTHMUS_FUSED_SEQUENTIAL, which needs no peer access");
}

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
