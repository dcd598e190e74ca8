// Ranks that meet through an MPI communicator.
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// Collective over table->comm, which is duplicated twice: for this exchange and, as mpi_comm(), for payload.
// The duplication itself blocks like any MPI call, without a bound; every exchange afterwards is bounded.
// `table` must not be NULL and must outlive the bootstrap. Throws error: INVALID_ARGUMENT for a table of
// another version, INVALID_USAGE on a thread that must not call MPI, BACKEND with MPI's code and text.
std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s);

}  // namespace isthmus
