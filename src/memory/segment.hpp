// A piece of anonymous shared memory. It has no name: a peer opens it through /proc while its owner holds
// the descriptor, so nothing is left behind after a crash and no other user can reach it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace isthmus {

// How a peer on the same machine reaches a segment, and the proof that it reached the right one.
struct segment_address {
  std::int64_t pid;
  std::int32_t fd;
  std::int32_t reserved;
  std::uint64_t bytes;
  std::array<std::uint64_t, 2> cookie;  // random; also the key within one process
};

class shared_segment {
 public:
  // A new segment of this process, zero pages. Throws error (SYSTEM or OUT_OF_MEMORY).
  static std::shared_ptr<shared_segment> create(std::uint64_t bytes);

  // A peer's segment; the same object for all who open it within one process. Throws error (SYSTEM) when it
  // can't be reached, or is not the one that the address describes.
  static std::shared_ptr<shared_segment> open(const segment_address& address);

  ~shared_segment();
  shared_segment(const shared_segment&) = delete;
  shared_segment& operator=(const shared_segment&) = delete;

  std::byte* data() const;  // page-aligned, `bytes` long
  const segment_address& address() const { return m_address; }
  // Where the address' cookie can be read in this process.
  const void* cookie() const { return m_mapping; }

  // Once all peers have it: the descriptor is no longer needed and nobody can open it any more.
  void close_descriptor();

 private:
  shared_segment() = default;
  static std::shared_ptr<shared_segment> open_by_descriptor(const segment_address& address);
  void map(int fd);

  segment_address m_address{};
  void* m_mapping = nullptr;
  std::uint64_t m_mapped_bytes = 0;
  int m_fd = -1;
};

}  // namespace isthmus
