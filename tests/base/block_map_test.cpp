// Checks the blocks of every collective against the oracle.
#include "base/block_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "conformance/test_case.hpp"
#include "oracle/movement.hpp"

namespace block_map_test {
namespace {

using isthmus::block;
using isthmus::block_map;

constexpr std::uint64_t element_bytes = 4;

// The operation as `rank` passes it. Arrays are set only on ranks that read them according to
// the collective table.
isthmus_operation operation_of(const oracle::operation_shape& shape, int rank) {
  isthmus_operation operation{};
  operation.collective = shape.collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.root = shape.root;
  operation.count = shape.count;
  const auto own_rank_index = static_cast<std::size_t>(rank);
  const auto has_root_only = [&](isthmus_collective rooted) {
    return shape.collective != rooted || rank == shape.root;
  };
  if (!shape.recv_layouts.empty() && has_root_only(ISTHMUS_GATHERV)) {
    operation.recv_counts = shape.recv_layouts[own_rank_index].counts.data();
    operation.recv_displs = shape.recv_layouts[own_rank_index].displs.data();
  }
  if (!shape.send_layouts.empty() && has_root_only(ISTHMUS_SCATTERV)) {
    operation.send_counts = shape.send_layouts[own_rank_index].counts.data();
    operation.send_displs = shape.send_layouts[own_rank_index].displs.data();
  }
  const auto parts = std::max(shape.send_layouts.size(), shape.recv_layouts.size());
  if (parts != 0)  // the length of the own block, described twice
    operation.count =
        (shape.recv_layouts.empty() ? shape.send_layouts : shape.recv_layouts)[0].counts[own_rank_index];
  return operation;
}

bool is_message(isthmus_collective collective) {
  return collective == ISTHMUS_SEND || collective == ISTHMUS_RECV;
}

// Calls body(shape, maps of all ranks) for all collectives except send and receive, for several sizes
// and all roots.
template <typename Body>
void for_each_shape(Body&& body) {
  for (int id = 0; id < ISTHMUS_COLLECTIVE_COUNT; ++id)
    for (int size = 1; size <= 5; ++size)
      for (int root = 0; root < size; ++root) {
        conformance::test_case test;
        test.collective = static_cast<isthmus_collective>(id);
        if (is_message(test.collective)) continue;
        test.datatype = ISTHMUS_FLOAT32;
        test.count = 13;
        test.root = root;
        test.seed = static_cast<std::uint64_t>(size * 10 + root);
        SCOPED_TRACE(conformance::to_string(test) + " of " + std::to_string(size));
        const oracle::operation_shape shape = conformance::shape_of(test, size);
        std::vector<block_map> maps;
        for (int rank = 0; rank < size; ++rank) maps.emplace_back(operation_of(shape, rank), rank, size);
        body(shape, maps);
      }
}

void expect_segment(const std::vector<block_map>& maps, int reader, int source,
                    const oracle::expected_segment& segment) {
  const block in = maps[static_cast<std::size_t>(reader)].incoming_block(source);
  const block out = maps[static_cast<std::size_t>(source)].outgoing_block(reader);
  EXPECT_EQ(in.offset, segment.recv_offset * element_bytes);
  EXPECT_EQ(in.bytes, segment.count * element_bytes);
  EXPECT_EQ(out.offset, segment.send_offset * element_bytes);
  EXPECT_EQ(out.bytes, segment.count * element_bytes);
}

TEST(block_map, blocks_match_the_oracle) {
  for_each_shape([](const oracle::operation_shape& shape, const std::vector<block_map>& maps) {
    for (int reader = 0; reader < shape.size; ++reader) {
      std::uint64_t expected = 0, received = 0;
      for (const oracle::expected_segment& segment : oracle::expected_segments(shape, reader)) {
        if (segment.count == 0) continue;
        const bool reduced = segment.rank == oracle::expected_segment::all_ranks;
        for (int source = 0; source < shape.size; ++source)
          if (reduced || source == segment.rank) expect_segment(maps, reader, source, segment);
        expected += segment.count * element_bytes * (reduced ? static_cast<std::uint64_t>(shape.size) : 1);
      }
      for (int source = 0; source < shape.size; ++source) {
        received += maps[static_cast<std::size_t>(reader)].incoming_block(source).bytes;
        EXPECT_EQ(maps[static_cast<std::size_t>(reader)].incoming_block(source).bytes,
                  maps[static_cast<std::size_t>(source)].outgoing_block(reader).bytes);
      }
      EXPECT_EQ(received, expected) << "on rank " << reader;
    }
  });
}

TEST(block_map, extents_match_the_oracle) {
  for_each_shape([](const oracle::operation_shape& shape, const std::vector<block_map>& maps) {
    for (int rank = 0; rank < shape.size; ++rank) {
      EXPECT_EQ(maps[static_cast<std::size_t>(rank)].send_bytes(),
                oracle::send_extent(shape, rank) * element_bytes);
      EXPECT_EQ(maps[static_cast<std::size_t>(rank)].recv_bytes(),
                oracle::recv_extent(shape, rank) * element_bytes);
    }
  });
}

// Ranks that neither send nor receive must know how much the others exchange.
TEST(block_map, max_incoming_bytes_is_equal_on_all_ranks) {
  for_each_shape([](const oracle::operation_shape& shape, const std::vector<block_map>& maps) {
    if (isthmus::has_private_counts(isthmus::row_of(shape.collective))) return;
    for (int source = 0; source < shape.size; ++source) {
      std::uint64_t max_bytes = 0;
      for (int reader = 0; reader < shape.size; ++reader)
        if (reader != source)
          max_bytes = std::max(max_bytes, maps[static_cast<std::size_t>(source)].outgoing_block(reader).bytes);
      for (const block_map& map : maps)
        EXPECT_EQ(map.max_incoming_bytes(source), max_bytes) << "on rank " << map.rank;
    }
  });
}

TEST(block_map, shared_send_block_starts_at_offset_0) {
  for_each_shape([](const oracle::operation_shape&, const std::vector<block_map>& maps) {
    for (const block_map& map : maps)
      for (int reader = 0; map.sends_same_block() && reader < map.size; ++reader)
        if (map.is_receiver(reader)) {
          EXPECT_EQ(map.outgoing_block(reader).offset, 0u);
        }
  });
}

TEST(block_map, message_has_sender_and_receiver) {
  isthmus_operation message{};
  message.datatype = ISTHMUS_FLOAT32;
  message.count = 7;
  message.root = 2;
  message.collective = ISTHMUS_SEND;
  const block_map sender(message, 1, 4);
  message.collective = ISTHMUS_RECV;
  const block_map receiver(message, 1, 4);
  for (int peer = 0; peer < 4; ++peer) {
    EXPECT_EQ(sender.outgoing_block(peer).bytes, peer == 2 ? 7 * element_bytes : 0);
    EXPECT_EQ(receiver.incoming_block(peer).bytes, peer == 2 ? 7 * element_bytes : 0);
    EXPECT_EQ(sender.incoming_block(peer).bytes, 0u);
    EXPECT_EQ(receiver.outgoing_block(peer).bytes, 0u);
  }
  EXPECT_EQ(sender.send_bytes(), 7 * element_bytes);
  EXPECT_EQ(sender.recv_bytes(), 0u);
  EXPECT_EQ(receiver.recv_bytes(), 7 * element_bytes);
  EXPECT_EQ(receiver.send_bytes(), 0u);
}

// A call is in place only if the buffers alias exactly at the own block; a shift by one byte is not in place.
TEST(block_map, in_place_means_aliasing_own_block) {
  std::vector<std::byte> memory(1000);
  for (int id = 0; id < ISTHMUS_COLLECTIVE_COUNT; ++id) {
    isthmus_operation operation{};
    operation.collective = static_cast<isthmus_collective>(id);
    const isthmus::collective_row& row = isthmus::row_of(operation.collective);
    if (row.in_place == isthmus::alias_rule::never || isthmus::has_counts(row)) continue;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.count = 5;
    const int rank = 2;
    operation.root = rank;  // only the root uses both buffers
    const std::uint64_t own_rank_index = rank * operation.count * element_bytes;
    std::byte* send = memory.data();
    std::byte* recv = memory.data();
    if (row.in_place == isthmus::alias_rule::recv_block) send += own_rank_index;
    if (row.in_place == isthmus::alias_rule::send_block) recv += own_rank_index;
    for (const int shift : {0, 1}) {
      operation.send_buf = send + shift;
      operation.recv_buf = recv;
      EXPECT_EQ(isthmus::is_in_place(operation, block_map(operation, rank, 4)), shift == 0) << row.name;
      EXPECT_EQ(isthmus::overwrites_unsent_data(operation),
                shift == 0 && operation.collective == ISTHMUS_ALLTOALL)
          << row.name;
    }
  }
}

// Rules and backends see the mean block length of calls whose counts all ranks know.
TEST(mean_count, is_rounded_up) {
  const std::uint64_t uneven[] = {1, 2, 3, 5}, even[] = {4, 4, 4, 4}, none[] = {0, 0, 0, 0};
  for (const auto collective : {ISTHMUS_ALLGATHERV, ISTHMUS_REDUCE_SCATTERV}) {
    for (const auto& [counts, expected] : {std::pair(uneven, 3U), std::pair(even, 4U), std::pair(none, 0U),
                                           std::pair(static_cast<const std::uint64_t*>(nullptr), 9U)}) {
      isthmus_operation operation{};
      operation.collective = collective;
      operation.datatype = ISTHMUS_FLOAT32;
      operation.count = 9;
      operation.send_counts = operation.recv_counts = counts;
      EXPECT_EQ(isthmus::agreed_operation(operation, 4).count, expected);
      const std::uint64_t ranks = collective == ISTHMUS_ALLGATHERV ? 1 : 4;
      EXPECT_EQ(isthmus::selection_bytes(operation, 4), expected * element_bytes * ranks);
    }
  }
}

}  // namespace
}  // namespace block_map_test
