// Bootstrap on an MPI communicator.
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// Collective over table->comm, which is duplicated twice: for control messages and, as mpi_comm(), for payload.
// Blocking: waits for all ranks to duplicate the communicator. If this takes longer than the timeout, MPI_Abort
// ends the job.
// Lifetime: `table` must not be NULL and must outlive the bootstrap.
// Errors: INVALID_ARGUMENT for a table of another version, INVALID_USAGE on a thread that must not call MPI,
// BACKEND with MPI's code and text.
std::unique_ptr<bootstrap> make_mpi_bootstrap(const isthmus_mpi_table* table, double timeout_s);

}  // namespace isthmus
