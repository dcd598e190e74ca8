// Bounds waits inside native calls that know no timeout (the user's MPI): a thread, started with the first
// communicator that needs it, notices a rank that stays in one operation for longer than its timeout, logs
// what it knows, and poisons the communicator. The backend's abort then ends the native call; for MPI
// that is MPI_Abort, which ends the job.
#pragma once

#include <memory>

namespace isthmus {

class communicator;

// Any thread. The watchdog holds no reference: a communicator that is gone is forgotten.
void watch(const std::shared_ptr<communicator>& rank);

}  // namespace isthmus
