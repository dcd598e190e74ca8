// Shares by speed, for ranks that are not equally fast: the counts of reduce_scatterv, allgatherv and scatterv.
#ifndef ISTHMUS_PARTITION_HPP
#define ISTHMUS_PARTITION_HPP

#include <isthmus/isthmus.h>

#include <cstdint>
#include <isthmus/error.hpp>
#include <span>
#include <vector>

namespace isthmus {

/// One entry for each rank, in elements.
struct shares {
  std::vector<std::uint64_t> counts, displs;
};

/// Cuts `count` elements in proportion to measured speeds: largest remainders, exact sums.
/// @code
/// const isthmus::shares parts = isthmus::partition(speeds, rows * columns, columns);  // whole rows
/// ranks.reduce_scatterv(queue, all, parts.counts, parts.displs, mine, parts.counts[ranks.rank()]);
/// @endcode
/// @param speeds One for each rank, in any unit; 0 gets nothing. Equal on all ranks: exchange measured ones
/// first.
/// @param count Elements in all.
/// @param granularity Elements that stay together. The last share that is not empty also gets what fills none.
/// @return The shares, side by side, in rank order.
/// @throws isthmus::exception INVALID_ARGUMENT: no speeds, one that is negative, infinite or no number, all 0,
/// or
///   a granularity of 0.
inline shares partition(std::span<const double> speeds, std::uint64_t count, std::uint64_t granularity = 1) {
  shares result{std::vector<std::uint64_t>(speeds.size()), std::vector<std::uint64_t>(speeds.size())};
  detail::check(isthmus_partition(speeds.data(), static_cast<int>(speeds.size()), count, granularity,
                                  result.counts.data(), result.displs.data()));
  return result;
}

}  // namespace isthmus

#endif
