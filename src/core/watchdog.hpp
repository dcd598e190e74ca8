// Watchdog for native calls without a timeout: calls into the user's MPI, and into device libraries, which may
// have to connect to a peer during a call.
//
// Errors: if one operation of a rank takes longer than the timeout, the watchdog logs it and aborts the
// communicator. The backend's abort function then ends the native call. The mpi backend calls MPI_Abort,
// which ends the job.
#pragma once

#include <memory>

#include "device/watchdog.hpp"

namespace isthmus {

class communicator;

// Lifetime: destroy the watch before the communicator.
std::unique_ptr<watch> watch_calls(communicator& rank);

}  // namespace isthmus
