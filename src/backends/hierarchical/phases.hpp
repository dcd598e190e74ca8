// The collectives that islands asks its parts for, found in THE TABLE by who has what before and after.
#pragma once

#include "base/tables.hpp"

namespace isthmus::hierarchical::phase {

consteval isthmus_collective find(bool reduces, buffer_ranks send_ranks, extent send, buffer_ranks recv_ranks, extent recv) {
  for (int i = 0; i < ISTHMUS_COLLECTIVE_COUNT; ++i) {
    const auto each = static_cast<isthmus_collective>(i);
    const collective_row& row = row_of(each);
    if (row.peer != peer_kind::peer && row.is_reduction == reduces && row.send_ranks == send_ranks &&
        row.send_extent == send && row.recv_ranks == recv_ranks && row.recv_extent == recv)
      return each;
  }
  throw "THE TABLE has no such collective";  // at compile time
}

// One rank's data to all ranks.
inline constexpr auto broadcast = find(false, buffer_ranks::root, extent::count, buffer_ranks::all, extent::count);
// The sums of all ranks' data: to one rank, to all, a block of them to each.
inline constexpr auto reduce = find(true, buffer_ranks::all, extent::count, buffer_ranks::root, extent::count);
inline constexpr auto allreduce = find(true, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto reduce_scatter = find(true, buffer_ranks::all, extent::count_x_size, buffer_ranks::all, extent::count);
// The same with blocks of different lengths.
inline constexpr auto reduce_scatterv = find(true, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::count);
// Every rank's block to all ranks; with blocks of different lengths; to one rank.
inline constexpr auto allgather = find(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count_x_size);
inline constexpr auto allgatherv = find(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::counts);
inline constexpr auto gatherv = find(false, buffer_ranks::all, extent::count, buffer_ranks::root, extent::counts);
// From every rank a block of any length to every rank.
inline constexpr auto alltoallv = find(false, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::counts);
inline constexpr auto barrier = find(false, buffer_ranks::none, extent::nothing, buffer_ranks::none, extent::nothing);

}  // namespace isthmus::hierarchical::kinds
