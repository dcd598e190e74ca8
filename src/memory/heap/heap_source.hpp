// Where the symmetric heap gets its memory from: shared segments on the host, the driver's blocks on a
// device. The heap itself knows no difference.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace isthmus {

// One rank's memory as a holder in this process sees it. It goes when the last holder lets go.
class heap_segment {
 public:
  virtual ~heap_segment() = default;
  virtual void* data() const = 0;
  // Every peer has it: nobody else can open it any more.
  virtual void end_export() = 0;
};

// How another rank opens a piece; plain bytes.
struct heap_segment_address {
  std::array<std::byte, 192> bytes;
};

struct new_heap_segment {
  std::shared_ptr<heap_segment> segment;
  heap_segment_address address;
};

class heap_source {
 public:
  // For a rank on `device`. Throws error (UNSUPPORTED) where the platform has no heap, with the reason.
  static std::unique_ptr<heap_source> make(isthmus_device device);
  virtual ~heap_source() = default;

  // Pieces are multiples of this; blocks below half of it share a piece. 0: each block has its own.
  virtual std::uint64_t granularity() = 0;

  // A new piece of this rank, zero-filled.
  virtual new_heap_segment create(std::uint64_t bytes) = 0;
  // Another rank's piece (of this machine). nullptr and `reason` where this rank can't reach it; throws where
  // it should have worked, or where another way of sharing may still do.
  virtual std::shared_ptr<heap_segment> open(const heap_segment_address& address, std::string& reason) = 0;
  // Opening failed on some rank: new pieces are shared in the next best way.
  virtual bool can_fall_back() const = 0;
  virtual void fall_back() = 0;
  // A piece of this rank must stay until no peer has it open any more.
  virtual bool must_outlive_peers() const = 0;
  virtual void clear(void* pointer, std::uint64_t bytes) = 0;
};

}  // namespace isthmus
