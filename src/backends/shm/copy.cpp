#include "backends/shm/copy.hpp"

#include <algorithm>
#include <cstdint>

namespace isthmus::shm {
namespace {

constexpr std::size_t line = 64;

std::size_t bytes_to_next_line(const void* pointer) {
  return (line - reinterpret_cast<std::uintptr_t>(pointer) % line) % line;
}

// Up to the first whole line through the cache, then lines past it, then the rest through the cache.
void copy_streaming(copy_range range, cpu::copy_function copy_lines) {
  const std::size_t head = std::min(range.bytes, bytes_to_next_line(range.to));
  if (head > 0) std::memcpy(range.to, range.from, head);
  range = {range.to + head, range.from + head, range.bytes - head};
  const std::size_t whole = range.bytes / line * line;
  copy_lines(&range, 1, whole, store_mode::streaming);
  if (whole < range.bytes) std::memcpy(range.to + whole, range.from + whole, range.bytes - whole);
}

}  // namespace

void copy_interleaved(std::span<const copy_range> pieces, store_mode mode) noexcept {
  const cpu::copy_function copy_lines = cpu::kernels().copy_lines;
  while (!pieces.empty()) {
    const auto group = pieces.first(std::min(cpu::copied_streams, pieces.size()));
    pieces = pieces.subspan(group.size());
    std::size_t common = group[0].bytes;
    bool is_aligned = true;
    for (const copy_range& each : group) {
      common = std::min(common, each.bytes);
      is_aligned &= bytes_to_next_line(each.to) == 0;
    }
    common = mode == store_mode::cached || is_aligned ? common / line * line : 0;
    if (common > 0) copy_lines(group.data(), group.size(), common, mode);
    for (const copy_range& each : group) {
      const copy_range rest{each.to + common, each.from + common, each.bytes - common};
      if (rest.bytes == 0) continue;
      if (mode == store_mode::streaming)
        copy_streaming(rest, copy_lines);
      else
        std::memcpy(rest.to, rest.from, rest.bytes);
    }
  }
}

}  // namespace isthmus::shm
