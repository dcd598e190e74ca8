// The blocks of every collective against the oracle's pieces.
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

constexpr std::uint64_t width = 4;

// What `rank` passes. Arrays only where THE TABLE says that they are read: others may pass anything.
isthmus_operation operation_of(const oracle::shape& shape, int rank) {
  isthmus_operation made{};
  made.collective = shape.collective;
  made.datatype = ISTHMUS_FLOAT32;
  made.root = shape.root;
  made.count = shape.count;
  const auto own = static_cast<std::size_t>(rank);
  const auto at_root = [&](isthmus_collective rooted) {
    return shape.collective != rooted || rank == shape.root;
  };
  if (!shape.recv_parts.empty() && at_root(ISTHMUS_GATHERV)) {
    made.recv_counts = shape.recv_parts[own].counts.data();
    made.recv_displs = shape.recv_parts[own].displs.data();
  }
  if (!shape.send_parts.empty() && at_root(ISTHMUS_SCATTERV)) {
    made.send_counts = shape.send_parts[own].counts.data();
    made.send_displs = shape.send_parts[own].displs.data();
  }
  const auto parts = std::max(shape.send_parts.size(), shape.recv_parts.size());
  if (parts != 0)  // the own block, once more
    made.count = (shape.recv_parts.empty() ? shape.send_parts : shape.recv_parts)[0].counts[own];
  return made;
}

bool is_message(isthmus_collective collective) {
  return collective == ISTHMUS_SEND || collective == ISTHMUS_RECV;
}

// Calls body(shape, maps of all ranks) for every collective but the messages, with sizes and roots.
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
        const oracle::shape shape = conformance::shape_of(test, size);
        std::vector<block_map> all;
        for (int rank = 0; rank < size; ++rank) all.emplace_back(operation_of(shape, rank), rank, size);
        body(shape, all);
      }
}

void expect_piece(const std::vector<block_map>& all, int reader, int source, const oracle::piece& piece) {
  const block in = all[static_cast<std::size_t>(reader)].incoming(source);
  const block out = all[static_cast<std::size_t>(source)].outgoing(reader);
  EXPECT_EQ(in.at, piece.recv_at * width);
  EXPECT_EQ(in.bytes, piece.count * width);
  EXPECT_EQ(out.at, piece.send_at * width);
  EXPECT_EQ(out.bytes, piece.count * width);
}

TEST(block_map, blocks_are_the_pieces_of_the_oracle) {
  for_each_shape([](const oracle::shape& shape, const std::vector<block_map>& all) {
    for (int reader = 0; reader < shape.size; ++reader) {
      std::uint64_t expected = 0, found = 0;
      for (const oracle::piece& piece : oracle::expected_pieces(shape, reader)) {
        if (piece.count == 0) continue;
        const bool reduced = piece.rank == oracle::piece::all_ranks;
        for (int source = 0; source < shape.size; ++source)
          if (reduced || source == piece.rank) expect_piece(all, reader, source, piece);
        expected += piece.count * width * (reduced ? static_cast<std::uint64_t>(shape.size) : 1);
      }
      for (int source = 0; source < shape.size; ++source) {
        found += all[static_cast<std::size_t>(reader)].incoming(source).bytes;
        EXPECT_EQ(all[static_cast<std::size_t>(reader)].incoming(source).bytes,
                  all[static_cast<std::size_t>(source)].outgoing(reader).bytes);
      }
      EXPECT_EQ(found, expected) << "on rank " << reader;
    }
  });
}

TEST(block_map, extents_are_those_of_the_oracle) {
  for_each_shape([](const oracle::shape& shape, const std::vector<block_map>& all) {
    for (int rank = 0; rank < shape.size; ++rank) {
      EXPECT_EQ(all[static_cast<std::size_t>(rank)].send_bytes(), oracle::send_extent(shape, rank) * width);
      EXPECT_EQ(all[static_cast<std::size_t>(rank)].recv_bytes(), oracle::recv_extent(shape, rank) * width);
    }
  });
}

// Ranks that take no part have to know how much the others exchange.
TEST(block_map, all_ranks_know_what_is_taken_from_each) {
  for_each_shape([](const oracle::shape& shape, const std::vector<block_map>& all) {
    if (isthmus::has_private_counts(isthmus::row_of(shape.collective))) return;
    for (int source = 0; source < shape.size; ++source) {
      std::uint64_t most = 0;
      for (int reader = 0; reader < shape.size; ++reader)
        if (reader != source)
          most = std::max(most, all[static_cast<std::size_t>(source)].outgoing(reader).bytes);
      for (const block_map& one : all) EXPECT_EQ(one.taken_from(source), most) << "on rank " << one.rank;
    }
  });
}

TEST(block_map, one_block_for_all_is_the_same_block) {
  for_each_shape([](const oracle::shape&, const std::vector<block_map>& all) {
    for (const block_map& one : all)
      for (int reader = 0; one.same_for_all() && reader < one.size; ++reader)
        if (one.takes(reader)) {
          EXPECT_EQ(one.outgoing(reader).at, 0u);
        }
  });
}

TEST(block_map, a_message_has_two_ends) {
  isthmus_operation message{};
  message.datatype = ISTHMUS_FLOAT32;
  message.count = 7;
  message.root = 2;
  message.collective = ISTHMUS_SEND;
  const block_map sender(message, 1, 4);
  message.collective = ISTHMUS_RECV;
  const block_map receiver(message, 1, 4);
  for (int peer = 0; peer < 4; ++peer) {
    EXPECT_EQ(sender.outgoing(peer).bytes, peer == 2 ? 7 * width : 0);
    EXPECT_EQ(receiver.incoming(peer).bytes, peer == 2 ? 7 * width : 0);
    EXPECT_EQ(sender.incoming(peer).bytes, 0u);
    EXPECT_EQ(receiver.outgoing(peer).bytes, 0u);
  }
  EXPECT_EQ(sender.send_bytes(), 7 * width);
  EXPECT_EQ(sender.recv_bytes(), 0u);
  EXPECT_EQ(receiver.recv_bytes(), 7 * width);
  EXPECT_EQ(receiver.send_bytes(), 0u);
}

// Where the own block lies says whether the call is in place; a byte beside it is another place.
TEST(block_map, in_place_is_the_own_block) {
  std::vector<std::byte> memory(1000);
  for (int id = 0; id < ISTHMUS_COLLECTIVE_COUNT; ++id) {
    isthmus_operation asked{};
    asked.collective = static_cast<isthmus_collective>(id);
    const isthmus::collective_row& row = isthmus::row_of(asked.collective);
    if (row.in_place == isthmus::alias_rule::never || isthmus::has_counts(row)) continue;
    asked.datatype = ISTHMUS_FLOAT32;
    asked.count = 5;
    const int rank = 2;
    asked.root = rank;  // only there both buffers are used
    const std::uint64_t own = rank * asked.count * width;
    std::byte* send = memory.data();
    std::byte* recv = memory.data();
    if (row.in_place == isthmus::alias_rule::recv_block) send += own;
    if (row.in_place == isthmus::alias_rule::send_block) recv += own;
    for (const int beside : {0, 1}) {
      asked.send_buf = send + beside;
      asked.recv_buf = recv;
      EXPECT_EQ(isthmus::is_in_place(asked, block_map(asked, rank, 4)), beside == 0) << row.name;
      EXPECT_EQ(isthmus::overwrites_outgoing(asked), beside == 0 && asked.collective == ISTHMUS_ALLTOALL)
          << row.name;
    }
  }
}

}  // namespace
}  // namespace block_map_test
