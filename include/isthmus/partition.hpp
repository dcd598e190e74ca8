// Partitions elements among ranks of different speeds, for reduce_scatterv, allgatherv and scatterv.
#ifndef ISTHMUS_PARTITION_HPP
#define ISTHMUS_PARTITION_HPP

#include <isthmus/error.hpp>  // fails before C++20
#if __cplusplus >= 202002L
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus {

/// Counts and displacements in elements, one entry per rank.
struct shares {
  std::vector<std::uint64_t> counts, displs;
};

/// Partitions `count` elements in proportion to measured speeds, by the largest remainder method. The counts
/// add up to `count` exactly.
/// @code
/// const isthmus::shares parts = isthmus::partition(speeds, rows * columns, columns);  // whole rows
/// ranks.reduce_scatterv(queue, all, parts.counts, parts.displs, own, parts.counts[ranks.rank()]);
/// @endcode
/// @param speeds One speed per rank, in any unit; a rank with speed 0 gets no elements. Must be equal on all
///   ranks, so exchange measured speeds first.
/// @param count Total number of elements.
/// @param granularity Number of elements that must stay together. The last nonempty share also gets the
///   remaining elements that do not fill a granule.
/// @return The shares, contiguous and in rank order.
/// @throws isthmus::exception INVALID_ARGUMENT if `speeds` is empty, contains a negative, infinite or NaN
///   value, or is all 0, or if `granularity` is 0.
inline shares partition(std::span<const double> speeds, std::uint64_t count, std::uint64_t granularity = 1) {
  shares result{std::vector<std::uint64_t>(speeds.size()), std::vector<std::uint64_t>(speeds.size())};
  detail::check(isthmus_partition(speeds.data(), static_cast<int>(speeds.size()), count, granularity,
                                  result.counts.data(), result.displs.data()));
  return result;
}

}  // namespace isthmus

#endif
#endif
