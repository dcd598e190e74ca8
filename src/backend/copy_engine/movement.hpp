// What one operation moves, as one rank sees it: pure arithmetic, no device.
//
// Every moving collective is a set of blocks, one from each source to each reader. The reader fetches it: it
// is the only one that writes its receive buffer, so a rank that gives up can't harm another one's memory.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <vector>

namespace isthmus::copy_engine {

// Bytes, and where they start in the buffer that they are in.
struct block {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};

struct movement {
  std::vector<block> outgoing;  // by reader: its place in this rank's send buffer
  // By source: its place in this rank's receive buffer; reduce_scatter's is the same for all, which are
  // combined.
  std::vector<block> incoming;
  // By source: the most that one reader takes from it; 0 where only the source itself does. All ranks know
  // it, those that take no part too.
  std::vector<std::uint64_t> longest;
  bool same_for_all = false;   // every reader takes the same block of a source
  std::uint64_t total_in = 0;  // from others
};

// Whether this file knows the collective.
bool is_moved(isthmus_collective collective);

// Fills `moved`, whose vectors keep their memory. Precondition: is_moved, and a validated operation.
void describe(const isthmus_operation& operation, int rank, int size, movement& moved);

}  // namespace isthmus::copy_engine
