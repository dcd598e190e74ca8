#include "frontends/mpi/execute.hpp"

#include <string>

namespace isthmus::mpi_shim {
namespace {

// Passes the call to MPI after a rank exited or aborted. The launcher and MPI decide what that means for the
// program: MPI waits or reports an error, as it would without Isthmus.
outcome pass_after_failure(attached_communicator& communicator) {
  communicator.pass_all_calls(pass_reason_code::rank_lost);
  return {outcome::result_kind::passed_through, MPI_SUCCESS, pass_reason_code::rank_lost};
}

outcome report_failure(MPI_Comm comm, mpi_function function, isthmus_status status) {
  isthmus_error_info failure;
  isthmus_last_error(&failure);
  statistics().warn_once(
      (std::string(mpi_function_names[static_cast<int>(function)]) + " failed: " + failure.message).c_str());
  const int code = status == ISTHMUS_ERROR_OUT_OF_MEMORY ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
  return {outcome::result_kind::done, raise_error(comm, code), pass_reason_code::rank_lost};
}

}  // namespace

int raise_error(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

outcome execute(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                const isthmus_operation& operation, std::uint64_t bytes) {
  if (!communicator.handles(operation))
    return {outcome::result_kind::passed_through, MPI_SUCCESS, pass_reason_code::no_rule_between_nodes};
  const preload::stopwatch timer(statistics());
  const isthmus_status status = isthmus_enqueue(communicator.handle(), &operation);
  switch (status) {
    case ISTHMUS_SUCCESS: break;
    case ISTHMUS_ERROR_INVALID_ARGUMENT:
      return {outcome::result_kind::refused, MPI_SUCCESS, pass_reason_code::checked_by_mpi};
    case ISTHMUS_ERROR_UNSUPPORTED:
      return {outcome::result_kind::passed_through, MPI_SUCCESS, pass_reason_code::no_backend};
    case ISTHMUS_ERROR_REMOTE:
    case ISTHMUS_ERROR_ABORTED:
    case ISTHMUS_ERROR_TIMEOUT:
    case ISTHMUS_ERROR_INVALID_USAGE: return pass_after_failure(communicator);
    default: return report_failure(comm, function, status);
  }
  if (statistics().is_reporting()) {
    const std::int64_t elapsed_ns = timer.nanoseconds();
    communicator.counter_for(function, operation, bytes).add(bytes, elapsed_ns);
  }
  return {outcome::result_kind::done, MPI_SUCCESS, pass_reason_code::checked_by_mpi};
}

}  // namespace isthmus::mpi_shim
