#include "backends/host/copy.hpp"

#include <algorithm>
#include <cstdint>

namespace isthmus::shm {
namespace {

constexpr std::size_t line = 64;

std::size_t bytes_to_next_line(const void* pointer) {
  return (line - reinterpret_cast<std::uintptr_t>(pointer) % line) % line;
}

// Up to the first whole line through the cache, then lines past it, then the rest through the cache.
void copy_streaming(copy_range all, cpu::copy_function copy_lines) {
  const std::size_t head = std::min(all.bytes, bytes_to_next_line(all.to));
  if (head > 0) std::memcpy(all.to, all.from, head);
  all = {all.to + head, all.from + head, all.bytes - head};
  const std::size_t whole = all.bytes / line * line;
  copy_lines(&all, 1, whole, store_mode::streaming);
  if (whole < all.bytes) std::memcpy(all.to + whole, all.from + whole, all.bytes - whole);
}

}  // namespace

void copy_together(std::span<const copy_range> pieces, store_mode how) noexcept {
  const cpu::copy_function copy_lines = cpu::kernels().copy_lines;
  while (!pieces.empty()) {
    const auto group = pieces.first(std::min(cpu::copied_streams, pieces.size()));
    pieces = pieces.subspan(group.size());
    std::size_t common = group[0].bytes;
    bool aligned = true;
    for (const copy_range& each : group) {
      common = std::min(common, each.bytes);
      aligned &= bytes_to_next_line(each.to) == 0;
    }
    common = how == store_mode::cached || aligned ? common / line * line : 0;
    if (common > 0) copy_lines(group.data(), group.size(), common, how);
    for (const copy_range& each : group) {
      const copy_range rest{each.to + common, each.from + common, each.bytes - common};
      if (rest.bytes == 0) continue;
      if (how == store_mode::streaming)
        copy_streaming(rest, copy_lines);
      else
        std::memcpy(rest.to, rest.from, rest.bytes);
    }
  }
}

}  // namespace isthmus::shm
