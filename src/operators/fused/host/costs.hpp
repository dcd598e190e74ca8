// What products and copies cost on this host, and how many threads a rank may use for them.
#pragma once

#include "operators/fused/host/blas.hpp"
#include "operators/fused/model/schedule.hpp"

namespace isthmus::fused {

// Collective: all ranks throw error (UNSUPPORTED) where one has no BLAS.
const blas& find_blas(communicator& owner);

// Collective: measures once in a process, takes the slowest rank's figures; the configuration overrides.
cost_model host_costs(communicator& owner, const fused_problem& problem, const blas& library);

// The cores of the machine, shared by its ranks; one where several ranks share a process, because a BLAS
// serialises calls that use more.
int threads_per_rank(const communicator& owner);

}  // namespace isthmus::fused
