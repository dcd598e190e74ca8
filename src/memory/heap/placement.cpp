#include "memory/heap/placement.hpp"

#include <iterator>

namespace isthmus {

std::optional<std::uint64_t> placement::take(std::uint64_t bytes) {
  const std::uint64_t wanted = (bytes + alignment - 1) / alignment * alignment;
  for (auto hole = m_free.begin(); hole != m_free.end(); ++hole) {
    const auto [offset, room] = *hole;
    if (room < wanted) continue;
    m_free.erase(hole);
    if (room > wanted) m_free[offset + wanted] = room - wanted;
    m_taken[offset] = wanted;
    return offset;
  }
  return std::nullopt;
}

void placement::give(std::uint64_t offset) {
  const auto taken = m_taken.find(offset);
  if (taken == m_taken.end()) return;
  auto hole = m_free.emplace(offset, taken->second).first;
  m_taken.erase(taken);
  if (const auto next = std::next(hole); next != m_free.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    m_free.erase(next);
  }
  if (hole != m_free.begin())
    if (const auto before = std::prev(hole); before->first + before->second == hole->first) {
      before->second += hole->second;
      m_free.erase(hole);
    }
}

}  // namespace isthmus
