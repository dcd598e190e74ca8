// Statistics of the program's MPI calls and the reasons why calls are passed to MPI.
#pragma once

#include "frontends/mpi/engine_abi.hpp"
#include "frontends/preload/call_statistics.hpp"

namespace isthmus::mpi_shim {

// Reasons for passing a call to MPI.
enum class pass_reason_code {
  no_data,
  checked_by_mpi,
  datatype,
  operation,
  one_rank,
  intercommunicator,
  mpi_not_running,
  device_memory,
  attach_failed,
  no_backend,
  no_rule_between_nodes,
  rank_lost,
  not_attached,
};
inline constexpr int reason_count = 13;

using preload::call_counter;

// The statistics of this process. ISTHMUS_MPI_REPORT requests a report.
preload::call_statistics& statistics();

inline void count_passed_through(mpi_function function, pass_reason_code reason) noexcept {
  statistics().count_passed_through(static_cast<int>(function), static_cast<int>(reason));
}

}  // namespace isthmus::mpi_shim
