// Shared memory of one rank: an anonymous memfd that peers open through /proc/<pid>/fd/<fd>. It has no
// name anywhere, only this user can open it, and it is gone with its last process, crash or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace isthmus::host {

// What a peer needs to find a segment.
struct segment_address {
  std::int64_t pid;
  std::int64_t descriptor;
  std::uint64_t cookie[2];
  std::uint64_t bytes;
};

class segment {
 public:
  // Throws std::runtime_error with the reason.
  static std::shared_ptr<segment> create(std::uint64_t bytes);
  // Ranks of one process share one mapping. Throws std::runtime_error with the reason.
  static std::shared_ptr<segment> open(const segment_address& address);

  segment(const segment&) = delete;
  segment& operator=(const segment&) = delete;
  ~segment();

  std::byte* data() const { return m_data; }
  const segment_address& address() const { return m_address; }
  // After this nobody can open the segment any more.
  void close_descriptor() noexcept;

 private:
  // A mapping of its own.
  static std::shared_ptr<segment> open_of_process(const segment_address& address);

  segment(std::byte* data, const segment_address& address) : m_data(data), m_address(address) {}

  std::byte* m_data;
  segment_address m_address;
};

}  // namespace isthmus::host
