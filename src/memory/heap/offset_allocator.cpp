#include "memory/heap/offset_allocator.hpp"

#include <iterator>

namespace isthmus {

std::optional<std::uint64_t> offset_allocator::allocate(std::uint64_t bytes) {
  const std::uint64_t aligned_bytes = (bytes + alignment - 1) / alignment * alignment;
  for (auto hole = m_free.begin(); hole != m_free.end(); ++hole) {
    const auto [offset, hole_bytes] = *hole;
    if (hole_bytes < aligned_bytes) continue;
    m_free.erase(hole);
    if (hole_bytes > aligned_bytes) m_free[offset + aligned_bytes] = hole_bytes - aligned_bytes;
    m_allocated[offset] = aligned_bytes;
    return offset;
  }
  return std::nullopt;
}

void offset_allocator::release(std::uint64_t offset) {
  const auto allocated = m_allocated.find(offset);
  if (allocated == m_allocated.end()) return;
  auto hole = m_free.emplace(offset, allocated->second).first;
  m_allocated.erase(allocated);
  if (const auto next = std::next(hole); next != m_free.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    m_free.erase(next);
  }
  if (hole != m_free.begin())
    if (const auto previous = std::prev(hole); previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      m_free.erase(hole);
    }
}

}  // namespace isthmus
