// What the ranks of a device plan share, all in the symmetric heap: the flags by which their streams wait for
// each other, used as sequence numbers (device/signal_channel.hpp), and a stage: for rows that lie outside the
// symmetric heap, or for partial sums.
#pragma single_us

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/communicator.hpp"
#include "device/signal_channel.hpp"

namespace isthmus::fused {

// A block of the symmetric heap with its addresses by rank.
class shared_block {
 public:
  // Collective. Throws UNSUPPORTED where this rank's device does not reach a peer's.
  shared_block(communicator& owner, std::uint64_t bytes);

  void* own() const { return m_own.get(); }
  const std::vector<void*>& peers() const { return m_peers; }

 private:
  struct release {
    communicator* owner;
    void operator()(void* block) const noexcept;
  };
  std::unique_ptr<void, release> m_own;
  std::vector<void*> m_peers;  // as this process reaches them
};

class shared_memory {
 public:
  // Collective. Flags start as 0.
  shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes);

  // The flag of `owner` in which `writer` counts the steps of its rows, or of its sums, that may be fetched.
  std::uint32_t* ready(int owner, int writer) const { return m_channel.ready(owner, 0, writer); }
  // The flag of `owner` in which `reader` counts the runs for which it has fetched all it needs from there.
  std::uint32_t* done(int owner, int reader) const { return m_channel.acknowledgement(owner, 0, reader); }
  std::byte* stage(int rank) const {
    return static_cast<std::byte*>(m_stage->peers()[static_cast<std::size_t>(rank)]);
  }

  std::uint64_t stage_bytes() const { return m_stage_bytes; }

  // Lets every wait of this rank's streams pass, for a failed communicator: what they fetch is not used.
  void release_all();

 private:
  int m_rank, m_size;
  std::uint64_t m_stage_bytes;
  shared_block m_flags;
  signal_channel m_channel;
  signal_monitor m_monitor;
  std::optional<shared_block> m_stage;
};

}  // namespace isthmus::fused
