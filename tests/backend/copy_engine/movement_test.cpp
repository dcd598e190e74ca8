// The blocks of every collective against the oracle's pieces.
#include "backend/copy_engine/movement.hpp"

#include <gtest/gtest.h>

#include "conformance/test_case.hpp"
#include "oracle/movement.hpp"

namespace copy_engine_test {
namespace {

using isthmus::copy_engine::describe;
using isthmus::copy_engine::movement;

constexpr isthmus_collective moved[] = {ISTHMUS_ALLGATHER, ISTHMUS_ALLGATHERV, ISTHMUS_ALLTOALL,
                                        ISTHMUS_BROADCAST, ISTHMUS_GATHER,     ISTHMUS_SCATTER};

isthmus_operation operation_of(const oracle::shape& shape, isthmus_datatype datatype, int rank) {
  isthmus_operation made{};
  made.collective = shape.collective;
  made.datatype = datatype;
  made.root = shape.root;
  made.count = shape.count;
  if (shape.collective == ISTHMUS_ALLGATHERV) {
    const oracle::blocks& parts = shape.recv_parts[static_cast<std::size_t>(rank)];
    made.count = parts.counts[static_cast<std::size_t>(rank)];
    made.recv_counts = parts.counts.data();
    made.recv_displs = parts.displs.data();
  }
  return made;
}

TEST(movement, every_incoming_block_is_a_piece_of_the_oracle) {
  for (const isthmus_collective collective : moved)
    for (int size = 1; size <= 5; ++size)
      for (int root = 0; root < size; ++root) {
        conformance::test_case test;
        test.collective = collective;
        test.datatype = ISTHMUS_FLOAT32;
        test.count = 13;
        test.root = root;
        test.seed = static_cast<std::uint64_t>(size * 10 + root);
        const oracle::shape shape = conformance::shape_of(test, size);
        std::vector<movement> all(static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank)
          describe(operation_of(shape, test.datatype, rank), rank, size, all[static_cast<std::size_t>(rank)]);
        for (int rank = 0; rank < size; ++rank) {
          std::uint64_t expected = 0, found = 0;
          for (const oracle::piece& piece : oracle::expected_pieces(shape, rank)) {
            if (piece.count == 0) continue;
            expected += piece.count * 4;
            const auto source = static_cast<std::size_t>(piece.rank);
            const auto reader = static_cast<std::size_t>(rank);
            EXPECT_EQ(all[reader].incoming[source].at, piece.recv_at * 4);
            EXPECT_EQ(all[reader].incoming[source].bytes, piece.count * 4);
            EXPECT_EQ(all[source].outgoing[reader].at, piece.send_at * 4);
            EXPECT_EQ(all[source].outgoing[reader].bytes, piece.count * 4);
          }
          for (const auto& block : all[static_cast<std::size_t>(rank)].incoming) found += block.bytes;
          EXPECT_EQ(found, expected) << conformance::to_string(test) << " on rank " << rank;
        }
      }
}

// Ranks that take no part have to know how many slots the others use.
TEST(movement, all_ranks_know_what_each_source_lends) {
  std::vector<isthmus_collective> known(std::begin(moved), std::end(moved));
  known.push_back(ISTHMUS_REDUCE_SCATTER);
  for (const isthmus_collective collective : known) {
    conformance::test_case test;
    test.collective = collective;
    test.datatype = ISTHMUS_INT8;
    test.count = 9;
    test.root = 2;
    const int size = 4;
    const oracle::shape shape = conformance::shape_of(test, size);
    std::vector<movement> all(size);
    for (int rank = 0; rank < size; ++rank)
      describe(operation_of(shape, test.datatype, rank), rank, size, all[static_cast<std::size_t>(rank)]);
    for (int source = 0; source < size; ++source) {
      std::uint64_t longest = 0;
      for (int reader = 0; reader < size; ++reader)
        if (reader != source)
          longest = std::max(
              longest, all[static_cast<std::size_t>(source)].outgoing[static_cast<std::size_t>(reader)].bytes);
      for (const movement& one : all)
        EXPECT_EQ(one.longest[static_cast<std::size_t>(source)], longest) << conformance::to_string(test);
    }
  }
}

}  // namespace
}  // namespace copy_engine_test
