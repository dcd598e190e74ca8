// C entry point of isthmus_partition.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.hpp"

namespace {

void check_speeds(std::span<const double> speeds) {
  for (std::size_t i = 0; i < speeds.size(); ++i)
    if (!std::isfinite(speeds[i]) || speeds[i] < 0)
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                                fmt::format("partition: speeds[{}] = {} must be finite and >= 0", i, speeds[i]),
                                "pass elements per second, or the inverse of a time");
  if (std::ranges::all_of(speeds, [](double speed) { return speed == 0; }))
    throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                              "partition: speeds must not all be 0",
                              "pass a positive speed for at least one rank");
}

void check_arguments(const double* speeds, int n, std::uint64_t granularity, const void* counts,
                     const void* displs) {
  const char* const violated_rule = n < 1               ? "partition: n must be >= 1"
                                    : granularity == 0  ? "partition: granularity must be >= 1"
                                    : speeds == nullptr ? "partition: speeds is NULL"
                                    : counts == nullptr ? "partition: counts is NULL"
                                    : displs == nullptr ? "partition: displs is NULL"
                                                        : nullptr;
  if (violated_rule != nullptr)
    throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE, violated_rule,
                              "pass arrays with one entry for each rank");
  check_speeds({speeds, static_cast<std::size_t>(n)});
}

// Distributes `granules` in proportion to the speeds, with the largest remainder method.
std::vector<std::uint64_t> distribute_granules(std::span<const double> speeds, std::uint64_t granules) {
  const double max_speed =
      std::ranges::max(speeds);  // normalized, so that the sum of finite speeds cannot overflow
  long double total = 0;
  for (const double speed : speeds) total += static_cast<long double>(speed) / max_speed;
  std::vector<std::uint64_t> shares(speeds.size());
  std::vector<long double> remainders(speeds.size());
  std::uint64_t remaining = granules;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    const long double exact =
        static_cast<long double>(speeds[i]) / max_speed / total * static_cast<long double>(granules);
    // Above 2^63, a rounded share could exceed the remaining granules.
    shares[i] = std::min(remaining, static_cast<std::uint64_t>(exact));
    remainders[i] = exact - static_cast<long double>(shares[i]);
    remaining -= shares[i];
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < speeds.size(); ++i)
    if (speeds[i] > 0) order.push_back(i);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return remainders[i]; });
  for (std::size_t next = 0; remaining > 0; --remaining, next = (next + 1) % order.size())
    ++shares[order[next]];
  return shares;
}

}  // namespace

isthmus_status isthmus_partition(const double* speeds, int n, uint64_t count, uint64_t granularity,
                                 uint64_t* counts, uint64_t* displs) {
  return isthmus::guard([&] {
    check_arguments(speeds, n, granularity, counts, displs);
    const std::span<const double> all_speeds(speeds, static_cast<std::size_t>(n));
    std::vector<std::uint64_t> shares = distribute_granules(all_speeds, count / granularity);
    for (std::uint64_t& share : shares) share *= granularity;
    // The last nonempty share receives the remainder; if no rank has a granule, the fastest rank gets it.
    auto last = std::find_if(shares.rbegin(), shares.rend(), [](std::uint64_t share) { return share > 0; });
    const auto fastest = static_cast<std::size_t>(std::ranges::max_element(all_speeds) - all_speeds.begin());
    (last != shares.rend() ? *last : shares[fastest]) += count % granularity;
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      counts[i] = shares[i];
      displs[i] = next;
      next += shares[i];
    }
  });
}
