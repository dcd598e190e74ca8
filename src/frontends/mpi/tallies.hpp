// What was done with the program's MPI calls, and why calls were left to MPI.
#pragma once

#include "frontends/mpi/calls.hpp"
#include "frontends/preload/call_statistics.hpp"

namespace isthmus::mpi_shim {

// Why a call was left to MPI.
enum class reason {
  nothing_to_move,
  left_to_check,
  datatype,
  operation,
  one_rank,
  intercommunicator,
  not_running,
  device_memory,
  no_communicator,
  unsupported,
  between_nodes,
  lost,
  first_calls,
};
inline constexpr int reason_count = 13;

using preload::call_counter;

// Of this process; a report is asked for by ISTHMUS_MPI_REPORT.
preload::call_statistics& statistics();

inline void count_passed_through(mpi_function function, reason why) noexcept {
  statistics().count_passed_through(static_cast<int>(function), static_cast<int>(why));
}

}  // namespace isthmus::mpi_shim
