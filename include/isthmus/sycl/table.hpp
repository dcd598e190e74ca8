// The collective table for the front end: the buffers that a rank uses in a collective, and their sizes.
#ifndef ISTHMUS_SYCL_TABLE_HPP
#define ISTHMUS_SYCL_TABLE_HPP

#include <isthmus/types.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace isthmus::detail {

/// The ranks on which a buffer is used.
enum class buffer_ranks { NONE, ROOT, ALL };
/// The size of a buffer: none, count, count per rank, or counts and displacements.
enum class buffer_extent { NOTHING, COUNT, COUNT_X_SIZE, COUNTS };

/// The buffers of one collective; collective_table[collective] is its row.
struct table_row {
  buffer_ranks send_ranks;
  buffer_extent send_extent;
  buffer_ranks recv_ranks;
  buffer_extent recv_extent;
};

inline constexpr table_row collective_table[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {buffer_ranks::send_ranks, buffer_extent::send_extent, buffer_ranks::recv_ranks, buffer_extent::recv_extent},
#include <isthmus/collectives.def>
};

/// Returns whether `rank` uses a buffer of these ranks.
inline bool uses_buffer(buffer_ranks ranks, int rank, int root) {
  return ranks == buffer_ranks::ALL || (ranks == buffer_ranks::ROOT && rank == root);
}

// Returns the number of elements from the start of the operand that a collective may access.
inline std::uint64_t extent_elements(buffer_extent extent, std::uint64_t count, int size,
                                     std::span<const std::uint64_t> counts,
                                     std::span<const std::uint64_t> displs) {
  switch (extent) {
    case buffer_extent::NOTHING: return 0;
    case buffer_extent::COUNT: return count;
    case buffer_extent::COUNT_X_SIZE: return count * static_cast<std::uint64_t>(size);
    case buffer_extent::COUNTS: {
      std::uint64_t end = 0;
      for (std::size_t r = 0; r < counts.size() && r < displs.size(); ++r) {
        if (counts[r] > 0) end = std::max(end, displs[r] + counts[r]);
      }
      return end;
    }
  }
  return 0;
}

}  // namespace isthmus::detail

#endif
