// Places of blocks inside one piece of memory: offsets only. The same calls give the same places, which is
// what keeps the symmetric heap of all ranks alike.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace isthmus {

class placement {
 public:
  explicit placement(std::uint64_t bytes) { m_free[0] = bytes; }

  // The lowest free place that fits; nothing when there is none. Places are multiples of `alignment`.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  // Gives a place back; neighbours join.
  void give(std::uint64_t offset);
  bool empty() const { return m_taken.empty(); }

  static constexpr std::uint64_t alignment = 4096;  // what NCCL wants of a window

 private:
  std::map<std::uint64_t, std::uint64_t> m_free, m_taken;  // offset -> bytes
};

}  // namespace isthmus
