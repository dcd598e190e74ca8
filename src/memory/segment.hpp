// Anonymous shared memory. It has no name: peers open it through /proc while the owner holds the file
// descriptor. Nothing remains after a crash, and other users cannot access it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace isthmus {

// Address of a segment for peers on the same machine, and a cookie that identifies the segment.
struct segment_address {
  std::int64_t pid;
  std::int32_t fd;
  std::int32_t reserved;
  std::uint64_t bytes;
  std::array<std::uint64_t, 2> cookie;  // random; also identifies the segment within a process
};

// user: the program may pass the memory to other libraries.
enum class segment_use : std::uint8_t { internal, user };

class shared_segment {
 public:
  // Creates a zero-filled segment. Throws error (SYSTEM or OUT_OF_MEMORY).
  static std::shared_ptr<shared_segment> create(std::uint64_t bytes, segment_use use);

  // Opens a peer's segment. All callers in a process share one object. Throws error (SYSTEM) if the segment
  // cannot be opened or does not match the address.
  static std::shared_ptr<shared_segment> open(const segment_address& address, segment_use use);

  ~shared_segment();
  shared_segment(const shared_segment&) = delete;
  shared_segment& operator=(const shared_segment&) = delete;

  std::byte* data() const;  // page-aligned, `bytes` long
  const segment_address& address() const { return m_address; }
  // Returns the location of the cookie in this process's mapping.
  const void* cookie() const { return m_mapping; }

  // Call this function when all peers have opened the segment. The segment can no longer be opened afterwards.
  void close_descriptor();

 private:
  explicit shared_segment(segment_use use) : m_use(use) {}
  static std::shared_ptr<shared_segment> open_by_descriptor(const segment_address& address, segment_use use);
  void map(int fd);

  segment_use m_use;
  segment_address m_address{};
  void* m_mapping = nullptr;
  std::uint64_t m_mapped_bytes = 0;
  int m_fd = -1;
};

}  // namespace isthmus
