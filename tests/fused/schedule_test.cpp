// The order of a plan is a pure function: what it must cover, and when it must prefer what.
#include "fused/schedule.hpp"

#include <gtest/gtest.h>

#include <random>

namespace isthmus::fused {
namespace {

problem make_problem(int rank, int size, std::uint64_t shard_rows, std::uint64_t n, std::uint64_t k) {
  problem what;
  what.rank = rank, what.size = size, what.shard_rows = shard_rows;
  what.asked.m = shard_rows * static_cast<std::uint64_t>(size);
  what.asked.n = n, what.asked.k = k;
  what.asked.input = ISTHMUS_FLOAT16, what.asked.output = ISTHMUS_FLOAT32;
  return what;
}

// A device on which a product takes whole waves of tiles.
costs device(double wave_us, std::uint64_t rows_per_wave, double bytes_per_us) {
  costs figures;
  figures.product_us = [=](std::uint64_t rows) {
    return 4 + wave_us * static_cast<double>((rows + rows_per_wave - 1) / rows_per_wave);
  };
  figures.bytes_per_us = bytes_per_us;
  figures.chunk_us = 3;
  return figures;
}

void expect_covers(const problem& what, const schedule& order) {
  ASSERT_FALSE(order.groups.empty());
  EXPECT_EQ(order.groups[0].source, what.rank) << "own rows first";
  std::vector<std::uint64_t> next(static_cast<std::size_t>(what.size), 0);
  for (const row_group& each : order.groups) {
    EXPECT_EQ(each.begin, next[static_cast<std::size_t>(each.source)])
        << "rows of a source in order, none twice";
    next[static_cast<std::size_t>(each.source)] += each.rows;
  }
  for (const std::uint64_t rows : next) EXPECT_EQ(rows, what.shard_rows);
}

TEST(fused_schedule, covers_every_row_once) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const int size = 2 + static_cast<int>(random() % 7);
    auto what = make_problem(
        static_cast<int>(random()) % size < 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(size)),
        size, random() % 5000, 512, 512);
    if (i % 3 == 0 && what.shard_rows > 0)
      what.asked.chunks = 1 + random() % static_cast<unsigned>(std::min<std::uint64_t>(what.shard_rows, 64));
    expect_covers(what,
                  make_schedule(what, device(1 + random() % 50, 1 + random() % 2000, 1 + random() % 300000)));
  }
}

// Communication that fits behind the own shard needs no cutting: cut products only waste waves.
TEST(fused_schedule, one_chunk_where_the_own_shard_hides_it) {
  const auto order = make_schedule(make_problem(0, 2, 4096, 8192, 8192), device(400, 2048, 370000));
  EXPECT_TRUE(order.pipelined);
  EXPECT_EQ(order.groups.size(), 2u);
}

// Where the link is the bottleneck, the product of what arrives last must be short.
TEST(fused_schedule, many_chunks_where_the_link_is_slow) {
  const auto order = make_schedule(make_problem(0, 2, 4096, 512, 8192), device(10, 512, 100000));
  EXPECT_TRUE(order.pipelined);
  EXPECT_GE(order.groups.size(), 3u);
  EXPECT_LE(order.groups.back().rows, 1024u);
  const double link_us = 4096.0 * 8192 * 2 / 100000;
  EXPECT_LE(order.pipelined_us, link_us + 3 + 2 * (4 + 10)) << "ends soon after the last byte";
}

TEST(fused_schedule, sequential_where_nothing_can_be_hidden) {
  auto figures = device(5, 100000, 300000);  // every product costs one wave, however small
  const auto order = make_schedule(make_problem(1, 4, 256, 64, 64), figures);
  EXPECT_FALSE(order.pipelined);
  EXPECT_NE(order.reason.find("the model predicts"), std::string::npos);
  figures.overlaps = false;
  EXPECT_FALSE(make_schedule(make_problem(1, 4, 4096, 4096, 4096), figures).pipelined);
}

// The dynamic programme against every way to cut one small shard.
TEST(fused_schedule, is_the_optimum_over_all_cuts) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto what = make_problem(0, 2, 6 * 128, 256, 256);
    const auto figures = device(1 + random() % 30, 64 + random() % 600, 1000 + random() % 60000);
    double best = 1e30;
    for (unsigned cuts = 0; cuts < 32; ++cuts) {
      double now = figures.product_us(768);
      std::uint64_t begin = 0;
      for (std::uint64_t piece = 1; piece <= 6; ++piece) {
        if (piece < 6 && (cuts >> (piece - 1) & 1u) == 0) continue;
        const std::uint64_t end = piece * 128;
        now = std::max(now, 3 + static_cast<double>(end * 512) / figures.bytes_per_us) +
              figures.product_us(end - begin);
        begin = end;
      }
      best = std::min(best, now);
    }
    EXPECT_NEAR(make_schedule(what, figures).pipelined_us, best, 1e-6 * best);
  }
}

}  // namespace
}  // namespace isthmus::fused
