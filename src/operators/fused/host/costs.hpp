// Costs of products and copies on this host, and the number of threads that a rank may use for them.
#pragma once

#include "operators/fused/host/blas.hpp"
#include "operators/fused/model/schedule.hpp"

namespace isthmus::fused {

// Collective.
// Errors: all ranks throw error (UNSUPPORTED) if any rank has no BLAS.
const blas& require_blas(communicator& owner);

// Collective. Measures once per process and uses the results of the slowest rank, unless they are configured.
cost_model host_costs(communicator& owner, const fused_problem& problem, const blas& library);

// The machine's cores divided by its ranks. Returns 1 if several ranks share a process, because a BLAS
// serializes multi-threaded calls.
int threads_per_rank(const communicator& owner);

}  // namespace isthmus::fused
