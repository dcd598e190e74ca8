// Host buffers through the user's own MPI: the default for everything, on one machine or many.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Blocking, one rank per process. Available when the communicator was made from MPI.
//
// Waits. Sends and receives are bounded by the timeout and notice an abort. MPI cannot cancel a collective
// that has begun: when the communicator is aborted while this rank is inside one (the watchdog does so
// after the timeout), the backend ends the job with MPI_Abort, because nothing else frees the ranks.
const isthmus_backend* mpi_backend() noexcept;

}  // namespace isthmus
