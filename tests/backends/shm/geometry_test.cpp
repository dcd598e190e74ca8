// What the segments of a communicator hold, and what they cost together.
#include <gtest/gtest.h>

#include "backends/shm/algorithms.hpp"
#include "backends/shm/connect.hpp"

namespace isthmus::shm {
namespace {

TEST(shm_geometry, keeps_all_segments_within_their_bound) {
  for (std::uint64_t ranks = 2; ranks <= 64; ++ranks)
    EXPECT_LE(ranks * segment_layout(default_geometry(ranks), ranks).bytes(), max_segments_bytes) << ranks << " ranks";
}

// src/selection/defaults.toml names algorithms up to a size; a path that does not hold it would fall back.
TEST(shm_geometry, holds_what_the_default_rules_put_into_packets) {
  for (int ranks = 3; ranks <= 64; ++ranks) {
    const geometry sizes = default_geometry(static_cast<std::uint64_t>(ranks));
    EXPECT_GE(packet_block_bytes(sizes, ranks, false), 1536u) << ranks << " ranks";
    const std::uint64_t of_one_rank = packet_block_bytes(sizes, ranks, true);
    EXPECT_GE(of_one_rank * static_cast<std::uint64_t>(ranks), 12u << 10) << ranks << " ranks";
  }
  EXPECT_GE(packet_block_bytes(default_geometry(2), 2, false), 24u << 10);
}

// Slices and results lie side by side; none reaches into what follows.
TEST(shm_geometry, has_room_for_every_part) {
  for (std::uint64_t ranks = 2; ranks <= 64; ++ranks) {
    const geometry sizes = default_geometry(ranks);
    const segment_layout places(sizes, ranks);
    EXPECT_LE(sizes.slot_block_bytes(static_cast<int>(ranks)) * ranks, sizes.slot_bytes);
    EXPECT_GE(places.result_bytes() * ranks, sizes.slot_bytes);
    EXPECT_GE(places.slot(1), places.slot(0) + places.slot_result() + places.result_bytes());
    EXPECT_GE(places.bytes(), places.slot(sizes.depth));
  }
}

}  // namespace
}  // namespace isthmus::shm
