// The schedule of a plan is a pure function: its coverage, and the modes and chunks that it selects.
#include "operators/fused/model/schedule.hpp"

#include <gtest/gtest.h>

#include <random>

namespace isthmus::fused {
namespace {

fused_problem make_problem(int rank, int size, std::uint64_t shard_rows, std::uint64_t n, std::uint64_t k) {
  fused_problem problem;
  problem.rank = rank, problem.size = size, problem.shard_rows = shard_rows;
  problem.description.m = shard_rows * static_cast<std::uint64_t>(size);
  problem.description.n = n, problem.description.k = k;
  problem.description.input = ISTHMUS_FLOAT16, problem.description.output = ISTHMUS_FLOAT32;
  return problem;
}

// Costs of a device on which products run in whole waves of tiles.
cost_model device(double wave_us, std::uint64_t rows_per_wave, double bytes_per_us) {
  cost_model costs;
  costs.product_us = [=](std::uint64_t rows) {
    return 4 + wave_us * static_cast<double>((rows + rows_per_wave - 1) / rows_per_wave);
  };
  costs.bytes_per_us = bytes_per_us;
  costs.chunk_us = 3;
  return costs;
}

void expect_covers(const fused_problem& problem, const fused_schedule& schedule) {
  ASSERT_FALSE(schedule.groups.empty());
  EXPECT_EQ(schedule.groups[0].source, problem.rank) << "own rows first";
  std::vector<std::uint64_t> next(static_cast<std::size_t>(problem.size), 0);
  for (const row_group& each : schedule.groups) {
    EXPECT_EQ(each.begin, next[static_cast<std::size_t>(each.source)])
        << "rows of a source in order, none twice";
    next[static_cast<std::size_t>(each.source)] += each.rows;
  }
  for (const std::uint64_t rows : next) EXPECT_EQ(rows, problem.shard_rows);
}

TEST(fused_schedule, covers_every_row_once) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const int size = 2 + static_cast<int>(random() % 7);
    auto problem = make_problem(
        static_cast<int>(random()) % size < 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(size)),
        size, random() % 5000, 512, 512);
    if (i % 3 == 0 && problem.shard_rows > 0)
      problem.description.chunks =
          1 + random() % static_cast<unsigned>(std::min<std::uint64_t>(problem.shard_rows, 64));
    expect_covers(
        problem, make_schedule(problem, device(1 + random() % 50, 1 + random() % 2000, 1 + random() % 300000)));
  }
}

TEST(fused_schedule, predicts_product_and_faster_transfer) {
  auto costs = device(10, 512, 100000);
  const auto problem = make_problem(0, 4, 1024, 512, 8192);
  const double link_us = 3 + 3 * 1024.0 * 8192 * 2 / 100000;
  auto schedule = make_schedule(problem, costs);
  EXPECT_DOUBLE_EQ(schedule.product_us, 4 + 10 * 4096.0 / 512);
  EXPECT_DOUBLE_EQ(schedule.transfer_us, link_us);
  EXPECT_DOUBLE_EQ(schedule.sequential_us, schedule.product_us + link_us);
  for (const double collective_us : {link_us / 2, link_us * 2}) {
    costs.collective_us = collective_us;
    schedule = make_schedule(problem, costs);
    EXPECT_DOUBLE_EQ(schedule.transfer_us, std::min(link_us, collective_us));
    EXPECT_DOUBLE_EQ(schedule.sequential_us, schedule.product_us + collective_us);
  }
  const auto single = make_schedule(make_problem(0, 1, 1024, 512, 8192), costs);
  EXPECT_EQ(single.transfer_us, 0);
  EXPECT_DOUBLE_EQ(single.sequential_us, single.product_us);
  EXPECT_TRUE(schedule.has_prediction);
  EXPECT_FALSE(sequential_fallback(problem, schedule, 2).has_prediction);
}

// If the own shard hides all communication, splitting only wastes waves.
TEST(fused_schedule, one_chunk_if_the_own_shard_hides_copies) {
  const auto schedule = make_schedule(make_problem(0, 2, 4096, 8192, 8192), device(400, 2048, 370000));
  EXPECT_TRUE(schedule.is_pipelined);
  EXPECT_EQ(schedule.groups.size(), 2u);
}

// If the link is the bottleneck, the product of the last chunk must be short.
TEST(fused_schedule, many_chunks_if_the_link_is_slow) {
  const auto schedule = make_schedule(make_problem(0, 2, 4096, 512, 8192), device(10, 512, 100000));
  EXPECT_TRUE(schedule.is_pipelined);
  EXPECT_GE(schedule.groups.size(), 3u);
  EXPECT_LE(schedule.groups.back().rows, 1024u);
  const double link_us = 4096.0 * 8192 * 2 / 100000;
  EXPECT_LE(schedule.pipelined_us, link_us + 3 + 2 * (4 + 10)) << "ends soon after the last byte";
}

TEST(fused_schedule, sequential_if_nothing_can_be_hidden) {
  auto costs = device(5, 100000, 300000);  // every product costs one wave, even a small one
  const auto schedule = make_schedule(make_problem(1, 4, 256, 64, 64), costs);
  EXPECT_FALSE(schedule.is_pipelined);
  EXPECT_NE(schedule.reason.find("the model predicts"), std::string::npos);
  costs.can_overlap = false;
  EXPECT_FALSE(make_schedule(make_problem(1, 4, 4096, 4096, 4096), costs).is_pipelined);
}

// Compares the dynamic program with every possible split of one small shard.
TEST(fused_schedule, is_the_optimum_over_all_splits) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto problem = make_problem(0, 2, 6 * 128, 256, 256);
    const auto costs = device(1 + random() % 30, 64 + random() % 600, 1000 + random() % 60000);
    double best = 1e30;
    for (unsigned cuts = 0; cuts < 32; ++cuts) {
      double now = costs.product_us(768), idle = 0;
      std::uint64_t begin = 0;
      for (std::uint64_t end_chunk = 1; end_chunk <= 6; ++end_chunk) {
        if (end_chunk < 6 && (cuts >> (end_chunk - 1) & 1u) == 0) continue;
        const std::uint64_t end = end_chunk * 128;
        idle += 3;
        now = std::max(now, idle + static_cast<double>(end * 512) / costs.bytes_per_us) +
              costs.product_us(end - begin);
        begin = end;
      }
      best = std::min(best, now);
    }
    EXPECT_NEAR(make_schedule(problem, costs).pipelined_us, best, 1e-6 * best);
  }
}

fused_problem make_scatter(int rank, int size, std::uint64_t shard_rows, std::uint64_t n, std::uint64_t k) {
  fused_problem problem = make_problem(rank, size, shard_rows, n, k);
  problem.description.kind = ISTHMUS_FUSED_GEMM_REDUCE_SCATTER;
  return problem;
}

// A run of many chunks is fast on the device, but not if the host takes longer to enqueue it.
TEST(fused_schedule, host_time_limits_the_chunks) {
  for (fused_problem problem : {make_problem(1, 2, 4096, 4096, 4096), make_scatter(1, 2, 4096, 4096, 4096)}) {
    const isthmus_fused_kind kind = problem.description.kind;
    cost_model costs = device(50, 1024, 100000);
    const fused_schedule fast_host = make_schedule(problem, costs);
    costs.group_host_us = fast_host.pipelined_us / static_cast<double>(fast_host.groups.size() - 1);
    const fused_schedule slow_host = make_schedule(problem, costs);
    EXPECT_LT(slow_host.groups.size(), fast_host.groups.size()) << kind;
    EXPECT_GE(slow_host.pipelined_us, costs.group_host_us * static_cast<double>(slow_host.groups.size()));
    EXPECT_TRUE(slow_host.is_pipelined);
    costs.group_host_us = slow_host.sequential_us;
    EXPECT_FALSE(make_schedule(problem, costs).is_pipelined) << kind;
    problem.description.mode = ISTHMUS_FUSED_PIPELINED;
    EXPECT_EQ(make_schedule(problem, costs).groups.size(), fast_host.groups.size()) << kind;
  }
}

TEST(fused_schedule, sums_travel_around_the_ring) {
  for (int size = 2; size < 6; ++size)
    for (const std::uint32_t chunks : {1u, 3u}) {
      std::vector<fused_schedule> orders;
      for (int rank = 0; rank < size; ++rank) {
        auto problem = make_scatter(rank, size, 384, 512, 512);
        problem.description.chunks = chunks;
        problem.description.mode = ISTHMUS_FUSED_PIPELINED;
        orders.push_back(make_schedule(problem, device(10, 256, 100000)));
        ASSERT_EQ(orders.back().groups.size(), static_cast<std::size_t>(size) * chunks);
      }
      for (int rank = 0; rank < size; ++rank) {
        const auto& own = orders[static_cast<std::size_t>(rank)].groups;
        const auto& previous = orders[static_cast<std::size_t>((rank + size - 1) % size)].groups;
        for (std::size_t index = 0; index < own.size(); ++index) {
          EXPECT_EQ(own[index].waits_for_chunk, index >= chunks);
          if (index < chunks) continue;
          EXPECT_EQ(own[index].source, previous[index - chunks].source)
              << "the previous rank has processed these rows";
          EXPECT_EQ(own[index].begin, previous[index - chunks].begin);
          EXPECT_EQ(own[index].rows, previous[index - chunks].rows);
        }
        EXPECT_EQ(own.back().source, rank);
        EXPECT_EQ(own.back().begin + own.back().rows, 384u);
      }
    }
}

// With one chunk nothing overlaps, because a step waits for the whole sum of the previous step.
TEST(fused_schedule, sums_are_split_if_that_hides_transfers) {
  const auto large = make_schedule(make_scatter(0, 2, 4096, 4096, 4096), device(50, 1024, 100000));
  EXPECT_TRUE(large.is_pipelined) << large.reason;
  EXPECT_GE(large.chunks, 2u);
  const double products = 2 * (4 + 4 * 50);
  EXPECT_LT(large.pipelined_us, products + 4096.0 * 4096 * 4 / 100000) << "part of the transfer is hidden";
  EXPECT_FALSE(make_schedule(make_scatter(0, 2, 64, 64, 64), device(5, 100000, 300000)).is_pipelined);
}

}  // namespace
}  // namespace isthmus::fused
