// The mpi backend: collectives through the MPI library of the program, on host buffers and on buffers of CUDA and
// HIP devices. The default for host buffers.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// One rank per process. Available if the communicator was created from MPI.
//
// Blocking: on the host only. On devices, a thread of the backend calls MPI (device_queue.hpp). Devices need
// MPI_THREAD_MULTIPLE and a rule of the configuration that names the backend.
//
// Errors: sends and receives end at an abort. On the host, they also end at the timeout; on devices, only if the
// process of the peer is stopped then, because the stream of a live peer may be busy. MPI cannot cancel a collective
// that has started. If the communicator is aborted while this rank is inside one (the watchdog aborts at the timeout),
// the backend revokes the MPI communicator if MPI has ULFM. Otherwise it ends the job with MPI_Abort, because
// nothing else releases the ranks.
const isthmus_backend* mpi_backend() noexcept;

}  // namespace isthmus
