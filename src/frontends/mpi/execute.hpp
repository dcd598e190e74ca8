// Runs an Isthmus operation instead of an MPI call.
#pragma once

#include <isthmus/isthmus.h>
#include <mpi.h>

#include "frontends/mpi/attached_communicator.hpp"

namespace isthmus::mpi_shim {

// Outcome of an operation.
//   done: `code` is the MPI return code.
//   refused: Isthmus cannot use these buffers directly; no data was moved.
//   passed_through: MPI must execute the call; `reason` explains why.
struct outcome {
  enum class result_kind { done, refused, passed_through } kind;
  int code = MPI_SUCCESS;
  pass_reason_code reason = pass_reason_code::checked_by_mpi;
};

// Runs an operation on an attached communicator. `bytes` is the size for the report.
// Errors: failures of Isthmus are passed to the communicator's error handler.
outcome execute(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                const isthmus_operation& operation, std::uint64_t bytes);

// Calls the communicator's error handler for a failure of Isthmus and returns `code`.
int raise_error(MPI_Comm comm, int code);

// Counts the reason and calls MPI.
template <typename CallMpi>
int pass_to_mpi(mpi_function function, pass_reason_code reason, CallMpi&& call_mpi) {
  count_passed_through(function, reason);
  return call_mpi();
}

}  // namespace isthmus::mpi_shim
