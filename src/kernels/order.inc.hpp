// The order in which kernels go through memory. Included as base/formats.inc.hpp is, under the same
// restrictions.
#pragma once

#include <cstddef>

namespace isthmus::host {
namespace {

// A processor looks ahead in each page that it sees read line by line, and not beyond the page. So kernels work
// on several pages at once, block by block (docs/notes has what that gained).
inline constexpr std::size_t turn_bytes = 512, turn_page_bytes = 4096;
inline constexpr std::size_t pages_at_once = 4;  // of all streams together

// Calls visit(begin, end, ahead) until all bytes were visited. `ahead` bytes further begins the block that
// follows in this page, or in the page after those that are under way.
template <std::size_t Streams, typename Visit>
inline __attribute__((always_inline)) void take_turns(std::size_t bytes, Visit visit) {
  constexpr std::size_t pages = Streams < pages_at_once ? pages_at_once / Streams : 1;
  for (std::size_t group = 0; group < bytes; group += pages * turn_page_bytes)
    for (std::size_t in_page = 0; in_page < turn_page_bytes; in_page += turn_bytes) {
      if (group + in_page >= bytes) break;
      const bool is_last = in_page + turn_bytes == turn_page_bytes;
      const std::size_t ahead = turn_bytes + (is_last ? (pages - 1) * turn_page_bytes : 0);
      for (std::size_t page = 0; page < pages; ++page) {
        const std::size_t begin = group + page * turn_page_bytes + in_page;
        if (begin >= bytes) break;
        visit(begin, bytes - begin < turn_bytes ? bytes : begin + turn_bytes, ahead);
      }
    }
}

}  // namespace
}  // namespace isthmus::host
