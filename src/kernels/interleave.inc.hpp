// The order in which kernels access memory. Included like base/formats.inc.hpp, with the same restrictions.
#pragma once

#include <cstddef>

namespace isthmus::cpu {
namespace {

// Hardware prefetchers follow sequential reads only within a page. Kernels therefore interleave blocks of
// several pages.
inline constexpr std::size_t interleaved_block_bytes = 512, page_bytes = 4096;
inline constexpr std::size_t concurrent_pages = 4;  // total over all streams

// Calls visit(begin, end, prefetch_distance) for all blocks. The block to prefetch starts `prefetch_distance`
// bytes after `begin`. It is the next block of the same page, or of the page after the current group of pages.
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
        visit(begin, bytes - begin < interleaved_block_bytes ? bytes : begin + interleaved_block_bytes,
              prefetch_distance);
      }
    }
}

}  // namespace
}  // namespace isthmus::cpu
