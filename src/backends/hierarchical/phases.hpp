// The collectives that run on the subcommunicators, looked up in the collective table by their data layout.
#pragma once

#include "base/tables.hpp"

namespace isthmus::hierarchical {

consteval isthmus_collective find_phase(bool is_reduction, buffer_ranks send_ranks, extent send,
                                        buffer_ranks recv_ranks, extent recv) {
  for (int i = 0; i < ISTHMUS_COLLECTIVE_COUNT; ++i) {
    const auto each = static_cast<isthmus_collective>(i);
    const collective_row& row = row_of(each);
    if (row.peer != peer_kind::peer && row.is_reduction == is_reduction && row.send_ranks == send_ranks &&
        row.send_extent == send && row.recv_ranks == recv_ranks && row.recv_extent == recv)
      return each;
  }
  throw "the collective table has no such collective";  // at compile time
}

inline constexpr auto broadcast_phase =
    find_phase(false, buffer_ranks::root, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto reduce_phase =
    find_phase(true, buffer_ranks::all, extent::count, buffer_ranks::root, extent::count);
inline constexpr auto allreduce_phase =
    find_phase(true, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto reduce_scatter_phase =
    find_phase(true, buffer_ranks::all, extent::count_x_size, buffer_ranks::all, extent::count);
inline constexpr auto reduce_scatterv_phase =
    find_phase(true, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::count);
inline constexpr auto allgather_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count_x_size);
inline constexpr auto allgatherv_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::counts);
inline constexpr auto gatherv_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::root, extent::counts);
inline constexpr auto alltoallv_phase =
    find_phase(false, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::counts);
inline constexpr auto barrier_phase =
    find_phase(false, buffer_ranks::none, extent::nothing, buffer_ranks::none, extent::nothing);

}  // namespace isthmus::hierarchical
