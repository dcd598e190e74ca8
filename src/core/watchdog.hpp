// Bounds waits inside native calls that know no timeout: the user's MPI, and the libraries of devices, which
// may have to connect to a peer within a call. A rank that stays in one operation for longer than its timeout
// is logged and its communicator poisoned. The backend's abort then ends the native call; for MPI that is
// MPI_Abort, which ends the job.
#pragma once

#include <memory>

#include "device/watchdog.hpp"

namespace isthmus {

class communicator;

// Ends before the communicator does.
std::unique_ptr<watch> watch_calls(communicator& rank);

}  // namespace isthmus
