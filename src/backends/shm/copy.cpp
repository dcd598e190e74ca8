#include "backends/shm/copy.hpp"

#include <algorithm>
#include <cstdint>

namespace isthmus::shm {
namespace {

constexpr std::size_t line = 64;

std::size_t bytes_to_next_line(const void* pointer) {
  return (line - reinterpret_cast<std::uintptr_t>(pointer) % line) % line;
}

// Copies whole lines with streaming stores, and the bytes before the first and after the last whole line
// with cached stores.
void copy_streaming(copy_range range, cpu::copy_function copy_lines) {
  const std::size_t head = std::min(range.bytes, bytes_to_next_line(range.destination));
  if (head > 0) std::memcpy(range.destination, range.source, head);
  range = {range.destination + head, range.source + head, range.bytes - head};
  const std::size_t body_bytes = range.bytes / line * line;
  copy_lines(&range, 1, body_bytes, store_mode::streaming);
  if (body_bytes < range.bytes)
    std::memcpy(range.destination + body_bytes, range.source + body_bytes, range.bytes - body_bytes);
}

}  // namespace

void copy_interleaved(std::span<const copy_range> ranges, store_mode mode) noexcept {
  const cpu::copy_function copy_lines = cpu::kernels().copy_lines;
  while (!ranges.empty()) {
    const auto group = ranges.first(std::min(cpu::max_copy_streams, ranges.size()));
    ranges = ranges.subspan(group.size());
    std::size_t common_bytes = group[0].bytes;
    bool is_aligned = true;
    for (const copy_range& each : group) {
      common_bytes = std::min(common_bytes, each.bytes);
      is_aligned &= bytes_to_next_line(each.destination) == 0;
    }
    common_bytes = mode == store_mode::cached || is_aligned ? common_bytes / line * line : 0;
    if (common_bytes > 0) copy_lines(group.data(), group.size(), common_bytes, mode);
    for (const copy_range& each : group) {
      const copy_range rest{each.destination + common_bytes, each.source + common_bytes,
                            each.bytes - common_bytes};
      if (rest.bytes == 0) continue;
      if (mode == store_mode::streaming)
        copy_streaming(rest, copy_lines);
      else
        std::memcpy(rest.destination, rest.source, rest.bytes);
    }
  }
}

}  // namespace isthmus::shm
