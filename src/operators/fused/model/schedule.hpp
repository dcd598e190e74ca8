// The schedule of a plan: the chunks in which a gathered A or partial sums are transferred, and the products
// that use them. It is a pure function of the problem and the measured costs, so ranks with equal costs get
// equal schedules.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "operators/fused/model/problem.hpp"

namespace isthmus::fused {

// Equal on all ranks; times in microseconds.
struct cost_model {
  std::function<double(std::uint64_t rows)> product_us;  // product of `rows` rows of A with all of B
  double bytes_per_us = 1;                               // total rate at which data arrives from other ranks
  double chunk_us = 0;                                   // idle time of the link per chunk
  double fixed_us = 0;                                   // fixed overhead of pipelining
  double host_us = 0, group_host_us = 0;                 // host time of a pipelined run: fixed, and per group
  double collective_us = 0;  // of the communicator's collective; 0: estimated from the link
  bool can_overlap = true;   // copies proceed while products are computed
  std::string source;        // source of the numbers, for info
  bool is_known = true;      // the other members are not placeholders
};

// One product: rows [begin, begin + rows) of the shard of rank `source`, of A (ALLGATHER_GEMM) or C
// (GEMM_REDUCE_SCATTER). `waits_for_chunk`: the product needs a chunk from a peer, rows of A or partial sums.
struct row_group {
  int source;
  std::uint64_t begin, rows;
  bool waits_for_chunk;
};

struct fused_schedule {
  bool is_pipelined = false;
  std::string reason;
  // In order of computation. ALLGATHER_GEMM: own shard first, then sources in ring order. GEMM_REDUCE_SCATTER:
  // rows of the previous rank first, own rows last, all split into the same chunks.
  std::vector<row_group> groups;
  std::uint32_t chunks = 1;  // maximum over all sources
  // Predicted times: of one product of all rows, of the faster transfer of all rows, and of both modes.
  double product_us = 0, transfer_us = 0, pipelined_us = 0, sequential_us = 0;
  bool has_prediction = true;
};

// ALLGATHER_GEMM: minimizes the end of the last product if chunks arrive one after the other. For each shard,
// dynamic programming finds the optimum over all splits at multiples of 1/16. GEMM_REDUCE_SCATTER: the best of
// 1 to 16 chunks. A pipelined run takes at least as long as the host needs to enqueue its groups, unless
// the caller has requested this form.
fused_schedule make_schedule(const fused_problem& problem, const cost_model& costs);

// GEMM_ALLREDUCE: one kernel (pipelined), or a product and the communicator's allreduce. `obstacle`: the reason why the
// kernel cannot be used, or empty.
// Errors: throws error (UNSUPPORTED) if pipelined was requested, but there is an obstacle.
fused_schedule make_allreduce_schedule(const fused_problem& problem, const std::string& obstacle);

// Collective. Selects pipelined only if every rank prefers it; products may differ between ranks (sharded B or
// k). Sums use the chunks of rank 0, because they pass through all ranks.
void agree_on_schedule(communicator& owner, const fused_problem& problem, fused_schedule& schedule);

// Returns the sequential schedule for ranks on `nodes` machines, which cannot share memory.
// Errors: throws error (UNSUPPORTED) if pipelined was requested.
fused_schedule sequential_fallback(const fused_problem& problem, const fused_schedule& schedule, int nodes);

// Returns a name for traces, for example "rank 1 rows 0..128".
std::string name_of(const row_group& group);

}  // namespace isthmus::fused
