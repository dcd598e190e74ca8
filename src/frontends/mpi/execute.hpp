// One operation of Isthmus in the place of an MPI call, and what becomes of it.
#pragma once

#include <isthmus/isthmus.h>
#include <mpi.h>

#include "frontends/mpi/attached_communicator.hpp"

namespace isthmus::mpi_shim {

// Done: with MPI's code. Refused: nothing was moved, because these buffers cannot be taken as they are. Passed:
// MPI shall do it, for m_why.
struct outcome {
  enum class result_kind { done, refused, passed_through } kind;
  int code = MPI_SUCCESS;
  pass_reason_code reason = pass_reason_code::checked_by_mpi;
};

// On an attached communicator. `bytes`: for the report. Failures of Isthmus go to the communicator's error
// handler.
outcome execute(attached_communicator& communicator, MPI_Comm comm, mpi_function function, const isthmus_operation& operation,
                std::uint64_t bytes);

// What hangs on the communicator's error handler after a failure of our own.
int raise_error(MPI_Comm comm, int code);

// Calls MPI and notes why.
template <typename CallMpi>
int pass_to_mpi(mpi_function function, pass_reason_code reason, CallMpi&& call_mpi) {
  count_passed_through(function, reason);
  return call_mpi();
}

}  // namespace isthmus::mpi_shim
