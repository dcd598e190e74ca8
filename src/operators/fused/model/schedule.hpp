// In which pieces a gathered A, or partial sums, travel and in which products they are used: a pure function of
// the problem and of measured costs, so that every rank that agrees on the costs gets the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "operators/fused/model/problem.hpp"

namespace isthmus::fused {

// Equal on all ranks; times in microseconds.
struct cost_model {
  std::function<double(std::uint64_t rows)> product_us;  // of so many rows of A with the whole B
  double bytes_per_us = 1;                               // that arrive from other ranks, all together
  double chunk_us = 0;                                   // that each chunk keeps the link idle
  double fixed_us = 0;                                   // what pipelining costs in any case
  double collective_us = 0;                              // of the communicator's own; 0: what the link takes
  bool can_overlap = true;                                  // copies go on while products are computed
  std::string source;                                    // where the figures come from, for info
};

// One product: rows [begin, begin + rows) of those that rank `source` has of A (ALLGATHER_GEMM) or of C
// (GEMM_REDUCE_SCATTER). `arrives`: it waits for a chunk of a peer, the rows of A or the sums so far.
struct row_group {
  int source;
  std::uint64_t begin, rows;
  bool waits_for_chunk;
};

struct fused_schedule {
  bool is_pipelined = false;
  std::string reason;
  // In order of computation. ALLGATHER_GEMM: own shard first, sources in ring order. GEMM_REDUCE_SCATTER: the
  // rows of the rank before this one first, own rows last, all in the same pieces.
  std::vector<row_group> groups;
  std::uint32_t chunks = 1;  // the most of any source
  double pipelined_us = 0, sequential_us = 0;
};

// ALLGATHER_GEMM: groups are chosen so that the last product ends as early as possible when chunks arrive one
// after the other: shard by shard, the optimum over all ways to cut it at multiples of 1/16, by dynamic
// programming. GEMM_REDUCE_SCATTER: the best of 1 to 16 pieces.
fused_schedule make_schedule(const fused_problem& problem, const cost_model& costs);

// Collective: pipelined only where every rank wants to; their products may differ (sharded B or k). Sums are
// cut as rank 0 wants it, because they pass through all ranks.
void agree_on_schedule(communicator& owner, const fused_problem& problem, fused_schedule& schedule);

// The sequential form, because the ranks are on `nodes` machines; throws error (UNSUPPORTED) where pipelined
// was asked for.
fused_schedule without_shared_memory(const fused_problem& problem, const fused_schedule& schedule, int nodes);

// "rank 1 rows 0..128", in traces.
std::string name_of(const row_group& each);

}  // namespace isthmus::fused
