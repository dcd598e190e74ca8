// Sizes of a communicator's segments, and their total memory.
#include <gtest/gtest.h>

#include <map>

#include "backends/shm/algorithms.hpp"

namespace isthmus::shm {
namespace {

TEST(shm_geometry, segments_stay_within_memory_limit) {
  for (std::uint64_t ranks = 2; ranks <= 64; ++ranks)
    EXPECT_LE(ranks * segment_layout(default_geometry(ranks), ranks).bytes(), max_segments_bytes)
        << ranks << " ranks";
}

// The limit of the total memory first shrinks cells, then slots, then packets.
TEST(shm_geometry, sizes_shrink_with_the_number_of_ranks) {
  const std::map<std::uint64_t, geometry> expected{
      {2, {32 << 10, 512, 8, 32 << 10, 4}},   {4, {64 << 10, 512, 8, 32 << 10, 4}},
      {5, {64 << 10, 512, 8, 32 << 10, 4}},   {9, {72 << 10, 512, 8, 32 << 10, 4}},
      {16, {128 << 10, 512, 8, 16 << 10, 4}}, {32, {128 << 10, 512, 8, 1 << 10, 4}},
      {48, {48 << 10, 512, 8, 1 << 10, 4}},   {64, {64 << 10, 256, 8, 256, 4}}};
  for (const auto& [ranks, sizes] : expected) {
    const geometry found = default_geometry(ranks);
    EXPECT_TRUE(found == sizes) << ranks << " ranks: slot " << found.slot_bytes << ", packet lines "
                                << found.packet_lines << ", depth " << found.depth << ", cells "
                                << found.cell_bytes << " x " << found.cells;
  }
}

// Packets must hold the sizes for which src/selection/defaults.toml selects them. Otherwise the call
// would fall back.
TEST(shm_geometry, packets_hold_sizes_of_default_rules) {
  for (int ranks = 3; ranks <= 64; ++ranks) {
    const geometry sizes = default_geometry(static_cast<std::uint64_t>(ranks));
    EXPECT_GE(packet_block_bytes(sizes, ranks, false), 1536u) << ranks << " ranks";
    const std::uint64_t of_one_rank = packet_block_bytes(sizes, ranks, true);
    EXPECT_GE(of_one_rank * static_cast<std::uint64_t>(ranks), 12u << 10) << ranks << " ranks";
  }
  EXPECT_GE(packet_block_bytes(default_geometry(2), 2, false), 24u << 10);
}

// Slices and results are adjacent and must not overlap.
TEST(shm_geometry, parts_of_a_segment_do_not_overlap) {
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
