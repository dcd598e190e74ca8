// In which pieces a gathered A travels and in which products it is consumed: a pure function of the problem
// and of measured costs, so that every rank that agrees on the costs gets the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fused/problem.hpp"

namespace isthmus::fused {

// Equal on all ranks; times in microseconds.
struct costs {
  std::function<double(std::uint64_t rows)> product_us;  // of so many rows of A with the whole B
  double bytes_per_us = 1;                               // that arrive from other ranks, all together
  double chunk_us = 0;                                   // before the first byte of a chunk arrives
  double fixed_us = 0;                                   // what pipelining costs in any case
  bool overlaps = true;                                  // copies go on while products are computed
  std::string source;                                    // where the figures come from, for info
};

// One chunk on its way and one product: rows [begin, begin + rows) of the shard of `source`.
struct row_group {
  int source;
  std::uint64_t begin, rows;
};

struct schedule {
  bool pipelined = false;
  std::string reason;
  std::vector<row_group> groups;  // in order of computation, own shard first; sources in ring order
  std::uint32_t chunks = 1;       // the most of any source
  double pipelined_us = 0, sequential_us = 0;
};

// Groups are chosen so that the last product ends as early as possible when chunks arrive in order: the
// optimum over all ways to cut the shards at multiples of 1/16, by dynamic programming.
schedule make_schedule(const problem& what, const costs& figures);

// Collective: pipelined only where every rank wants to; their products may differ (sharded B).
void agree_on_mode(communicator& owner, schedule& wished);

}  // namespace isthmus::fused
