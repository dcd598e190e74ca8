// Memory of the symmetric heap: shared memory segments on the host, shared blocks of the driver on devices. The
// heap itself is independent of the platform.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace isthmus {

// A mapping of one rank's memory in this process. Released with its last reference.
class heap_segment {
 public:
  virtual ~heap_segment() = default;
  virtual void* data() const = 0;
  // Call this function when all peers have opened the segment. The segment can no longer be opened afterwards.
  virtual void end_export() = 0;
};

// The address by which another rank opens a segment. Trivially copyable.
struct heap_segment_address {
  std::array<std::byte, 192> bytes;
};

struct new_heap_segment {
  std::shared_ptr<heap_segment> segment;
  heap_segment_address address;
};

class heap_source {
 public:
  // Creates the source for a rank on `device`. Throws error (UNSUPPORTED) with the reason if the platform has
  // no symmetric heap.
  static std::unique_ptr<heap_source> make(isthmus_device device);
  virtual ~heap_source() = default;

  // Segment sizes are multiples of this. Blocks of up to half of it share a segment. 0: each block has
  // its own segment.
  virtual std::uint64_t granularity() = 0;

  // Creates a zero-filled segment of this rank.
  virtual new_heap_segment create(std::uint64_t bytes) = 0;
  // Opens a segment of another rank of this machine. Returns nullptr and sets `reason` if this rank cannot
  // access it. Throws if opening failed unexpectedly, or if another sharing method may work.
  virtual std::shared_ptr<heap_segment> open(const heap_segment_address& address, std::string& reason) = 0;
  // If a rank could not open a segment, fall_back() selects the next sharing method for new segments.
  virtual bool can_fall_back() const = 0;
  virtual void fall_back() = 0;
  // True if a segment of this rank must not be released while a peer has it open.
  virtual bool must_outlive_peers() const = 0;
  virtual void clear(void* pointer, std::uint64_t bytes) = 0;
};

}  // namespace isthmus
