// The collectives that islands asks its parts for, found in THE TABLE by who has what before and after.
#pragma once

#include "base/tables.hpp"

namespace isthmus::islands::kinds {

consteval isthmus_collective find(bool reduces, site send_at, extent send, site recv_at, extent recv) {
  for (int i = 0; i < ISTHMUS_COLLECTIVE_COUNT; ++i) {
    const auto each = static_cast<isthmus_collective>(i);
    const collective_row& row = row_of(each);
    if (row.peer != peer_kind::peer && row.reduces == reduces && row.send_at == send_at &&
        row.send_extent == send && row.recv_at == recv_at && row.recv_extent == recv)
      return each;
  }
  throw "THE TABLE has no such collective";  // at compile time
}

// One rank's data to all ranks.
inline constexpr auto copy_to_all = find(false, site::root, extent::count, site::all, extent::count);
// The sums of all ranks' data: to one rank, to all, a block of them to each.
inline constexpr auto sum_to_one = find(true, site::all, extent::count, site::root, extent::count);
inline constexpr auto sum_to_all = find(true, site::all, extent::count, site::all, extent::count);
inline constexpr auto sum_to_each = find(true, site::all, extent::count_x_size, site::all, extent::count);
// The same with blocks of different lengths.
inline constexpr auto sum_to_each_run = find(true, site::all, extent::counts, site::all, extent::count);
// Every rank's block to all ranks; with blocks of different lengths; to one rank.
inline constexpr auto blocks_to_all = find(false, site::all, extent::count, site::all, extent::count_x_size);
inline constexpr auto runs_to_all = find(false, site::all, extent::count, site::all, extent::counts);
inline constexpr auto runs_to_one = find(false, site::all, extent::count, site::root, extent::counts);
// From every rank a block of any length to every rank.
inline constexpr auto runs_to_each = find(false, site::all, extent::counts, site::all, extent::counts);
inline constexpr auto meet = find(false, site::nowhere, extent::nothing, site::nowhere, extent::nothing);

}  // namespace isthmus::islands::kinds
