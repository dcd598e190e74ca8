// The order in which kernels go through memory. Included as base/formats.inc.hpp is, under the same
// restrictions.
#pragma once

#include <cstddef>

namespace isthmus::cpu {
namespace {

// A processor looks ahead in each page that it sees read line by line, and not beyond the page. So kernels work
// on several pages at once, block by block (docs/notes has what that gained).
inline constexpr std::size_t interleaved_block_bytes = 512, page_bytes = 4096;
inline constexpr std::size_t concurrent_pages = 4;  // of all streams together

// Calls visit(begin, end, ahead) until all bytes were visited. `ahead` bytes further begins the block that
// follows in this page, or in the page after those that are under way.
template <std::size_t Streams, typename Visit>
inline __attribute__((always_inline)) void interleave(std::size_t bytes, Visit visit) {
  constexpr std::size_t pages = Streams < concurrent_pages ? concurrent_pages / Streams : 1;
  for (std::size_t group_begin = 0; group_begin < bytes; group_begin += pages * page_bytes)
    for (std::size_t page_offset = 0; page_offset < page_bytes; page_offset += interleaved_block_bytes) {
      if (group_begin + page_offset >= bytes) break;
      const bool is_last = page_offset + interleaved_block_bytes == page_bytes;
      const std::size_t prefetch_distance = interleaved_block_bytes + (is_last ? (pages - 1) * page_bytes : 0);
      for (std::size_t page = 0; page < pages; ++page) {
        const std::size_t begin = group_begin + page * page_bytes + page_offset;
        if (begin >= bytes) break;
        visit(begin, bytes - begin < interleaved_block_bytes ? bytes : begin + interleaved_block_bytes, prefetch_distance);
      }
    }
}

}  // namespace
}  // namespace isthmus::cpu
