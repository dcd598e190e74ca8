#include "memory/heap/offset_allocator.hpp"

#include <iterator>

namespace isthmus {

std::optional<std::uint64_t> offset_allocator::allocate(std::uint64_t bytes) {
  const std::uint64_t aligned_bytes = (bytes + alignment - 1) / alignment * alignment;
  for (auto free_range = m_free_ranges.begin(); free_range != m_free_ranges.end(); ++free_range) {
    const auto [offset, free_bytes] = *free_range;
    if (free_bytes < aligned_bytes) continue;
    m_free_ranges.erase(free_range);
    if (free_bytes > aligned_bytes) m_free_ranges[offset + aligned_bytes] = free_bytes - aligned_bytes;
    m_allocated_ranges[offset] = aligned_bytes;
    return offset;
  }
  return std::nullopt;
}

void offset_allocator::release(std::uint64_t offset) {
  const auto allocation = m_allocated_ranges.find(offset);
  if (allocation == m_allocated_ranges.end()) return;
  auto free_range = m_free_ranges.emplace(offset, allocation->second).first;
  m_allocated_ranges.erase(allocation);
  if (const auto next = std::next(free_range);
      next != m_free_ranges.end() && free_range->first + free_range->second == next->first) {
    free_range->second += next->second;
    m_free_ranges.erase(next);
  }
  if (free_range != m_free_ranges.begin())
    if (const auto previous = std::prev(free_range); previous->first + previous->second == free_range->first) {
      previous->second += free_range->second;
      m_free_ranges.erase(free_range);
    }
}

}  // namespace isthmus
