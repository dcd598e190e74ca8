// Partition by speed: exact sums, whole granules, shares within one granule of the exact share, and rejection
// of invalid input.
#include <gtest/gtest.h>
#include <isthmus/tools.h>

#include <cmath>
#include <isthmus/partition.hpp>
#include <limits>
#include <numeric>
#include <random>

namespace {

using counts_list = std::vector<std::uint64_t>;

TEST(partition, uses_largest_remainders) {
  const std::vector<double> speeds{5, 3, 2};
  EXPECT_EQ(isthmus::partition(speeds, 10).counts, (counts_list{5, 3, 2}));
  EXPECT_EQ(isthmus::partition(speeds, 11).counts, (counts_list{6, 3, 2}));  // 5.5, 3.3, 2.2
  EXPECT_EQ(isthmus::partition(speeds, 11).displs, (counts_list{0, 6, 9}));
  const std::vector<double> equal{1, 1, 1};
  EXPECT_EQ(isthmus::partition(equal, 8).counts, (counts_list{3, 3, 2})) << "ties go to the lower rank";
}

TEST(partition, keeps_granules_together) {
  const std::vector<double> speeds{1, 2, 0};
  EXPECT_EQ(isthmus::partition(speeds, 100, 16).counts, (counts_list{32, 68, 0}))
      << "the last rank gets the incomplete granule";
  EXPECT_EQ(isthmus::partition(speeds, 7, 16).counts, (counts_list{0, 7, 0}))
      << "less than one granule goes to the fastest rank";
  EXPECT_EQ(isthmus::partition(speeds, 0).counts, (counts_list{0, 0, 0}));
}

TEST(partition, random_speeds_are_exact_and_fair) {
  std::mt19937_64 random(17);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto n = 1 + random() % 33;
    std::vector<double> speeds;
    for (std::uint64_t i = 0; i < n; ++i)
      speeds.push_back(random() % 7 == 0 ? 0 : std::exp(std::uniform_real_distribution(-30., 30.)(random)));
    speeds[random() % n] = 1;
    const std::uint64_t granularity = 1 + random() % 100;
    const std::uint64_t count = random() >> (trial % 2 == 0 ? 24 : random() % 64);
    const isthmus::shares shares = isthmus::partition(speeds, count, granularity);
    ASSERT_EQ(std::accumulate(shares.counts.begin(), shares.counts.end(), std::uint64_t{0}), count);
    const double total = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    std::uint64_t next = 0;
    bool has_seen_last = false;
    for (std::size_t i = n; i-- > 0;) {
      if (speeds[i] == 0) {
        EXPECT_EQ(shares.counts[i], 0U);
      }
      if (shares.counts[i] == 0) continue;
      if (has_seen_last) {
        EXPECT_EQ(shares.counts[i] % granularity, 0U);
      }
      has_seen_last = true;
      const double exact = speeds[i] / total * static_cast<double>(count);
      EXPECT_NEAR(static_cast<double>(shares.counts[i]), exact,
                  2.0 * static_cast<double>(granularity) + exact * 1e-9);
    }
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(shares.displs[i], next);
      next += shares.counts[i];
    }
  }
}

TEST(partition, extreme_speeds_do_not_overflow) {
  const double max_speed = std::numeric_limits<double>::max();
  const std::vector<double> fast(9, max_speed);
  const std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  const counts_list counts = isthmus::partition(fast, all).counts;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), all);
  const std::vector<double> extremes{max_speed, std::numeric_limits<double>::denorm_min()};
  EXPECT_EQ(isthmus::partition(extremes, 1000).counts, (counts_list{1000, 0}));
}

TEST(partition, rejects_invalid_speeds) {
  std::uint64_t counts[2] = {7, 7}, displs[2] = {7, 7};
  const auto expect_rejected = [&](double first, double second, int n, std::uint64_t granularity,
                                   const char* expected) {
    const double speeds[] = {first, second};
    EXPECT_EQ(isthmus_partition(speeds, n, 10, granularity, counts, displs), ISTHMUS_ERROR_INVALID_ARGUMENT);
    isthmus_error_info info{};
    isthmus_last_error(&info);
    EXPECT_NE(std::string(info.message).find(expected), std::string::npos) << info.message;
    EXPECT_EQ(counts[0], 7U);
  };
  expect_rejected(-1, 1, 2, 1, "speeds[0] = -1 must be");
  expect_rejected(1, NAN, 2, 1, "speeds[1] = nan must be");
  expect_rejected(1, INFINITY, 2, 1, "speeds[1] = inf must be");
  expect_rejected(0, 0, 2, 1, "speeds must not all be 0");
  expect_rejected(1, 1, 2, 0, "granularity must be");
  expect_rejected(1, 1, 0, 1, "n must be");
  EXPECT_EQ(isthmus_partition(nullptr, 2, 10, 1, counts, displs), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

}  // namespace
