// Blocks of pinned host memory that all ranks of a node access: their streams, and the host at any time.
//
// Signals are not in device memory, because the host can access it only through the driver, and the driver can block: while
// any thread frees memory, copies and launches of other threads wait until every stream of the device is idle. A stream
// that waits for a dead rank would then never be released. An operation of a stream on host memory takes 0.1 to 0.5 us
// longer (H200).
//
// Lifetime: Blocks are parts of segments that remain mapped and pinned until the process ends, because unpinning waits
//   for all streams of the device. A block is reused after all ranks that could write to it have released it. If a rank
//   is lost before, the block is never reused.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/driver.hpp"
#include "memory/segment.hpp"

namespace isthmus {

// Address of a block for the ranks of a node. Trivially copyable.
struct signal_block_address {
  segment_address segment;
  std::uint64_t offset;
};

// The blocks of the ranks of one communicator.
class signal_memory {
 public:
  signal_memory() = default;
  // Takes a zero-filled block of `bytes` for this rank. `size`: the number of ranks that will open it.
  // Errors: throws error; UNSUPPORTED if the devices cannot use host memory at its address in this process.
  signal_memory(device_driver& driver, int size, std::uint64_t bytes);
  ~signal_memory();
  signal_memory(signal_memory&& other) noexcept { swap(other); }
  signal_memory& operator=(signal_memory other) noexcept {
    swap(other);
    return *this;
  }

  const signal_block_address& address() const { return m_address; }
  // Opens the blocks of all ranks, in the order of the ranks.
  // Errors: throws error.
  void open(std::span<const signal_block_address> all);
  // Allows the block to be reused. Precondition: no rank has opened it, and none will.
  void discard() noexcept;
  // Returns the block of each rank. Empty before open().
  const std::vector<void*>& blocks() const { return m_blocks; }

  // Never reuses the blocks: a stuck stream may still write to them.
  void abandon() noexcept { m_blocks.clear(); }

 private:
  void swap(signal_memory& other) noexcept;

  device_driver* m_driver = nullptr;
  pid_t m_process = -1;   // that created the object
  void* m_own = nullptr;  // the block of this rank
  signal_block_address m_address{};
  std::vector<void*> m_blocks;  // by rank
};

}  // namespace isthmus
