// The ucx backend: collectives between nodes over UCX (TCP, InfiniBand, shared memory), on host
// or device buffers.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Blocking: each call returns when this rank's part is complete.
// The ranks exchange UCX addresses through the communicator's bootstrap.
const isthmus_backend* ucx_backend() noexcept;

}  // namespace isthmus
