// The collectives that islands asks its parts for, found in THE TABLE by who has what before and after.
#pragma once

#include "base/tables.hpp"

namespace isthmus::hierarchical::kinds {

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
inline constexpr auto copy_to_all = find(false, buffer_ranks::root, extent::count, buffer_ranks::all, extent::count);
// The sums of all ranks' data: to one rank, to all, a block of them to each.
inline constexpr auto sum_to_one = find(true, buffer_ranks::all, extent::count, buffer_ranks::root, extent::count);
inline constexpr auto sum_to_all = find(true, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto sum_to_each = find(true, buffer_ranks::all, extent::count_x_size, buffer_ranks::all, extent::count);
// The same with blocks of different lengths.
inline constexpr auto sum_to_each_run = find(true, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::count);
// Every rank's block to all ranks; with blocks of different lengths; to one rank.
inline constexpr auto blocks_to_all = find(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count_x_size);
inline constexpr auto runs_to_all = find(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::counts);
inline constexpr auto runs_to_one = find(false, buffer_ranks::all, extent::count, buffer_ranks::root, extent::counts);
// From every rank a block of any length to every rank.
inline constexpr auto runs_to_each = find(false, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::counts);
inline constexpr auto meet = find(false, buffer_ranks::none, extent::nothing, buffer_ranks::none, extent::nothing);

}  // namespace isthmus::hierarchical::kinds
