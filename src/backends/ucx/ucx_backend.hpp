// Host buffers between machines over UCX: shared memory, TCP, InfiniBand, what the machines have.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Blocking. Ranks meet through the communicator's own bootstrap, whichever it is; docs/ucx.md.
const isthmus_backend* ucx_backend() noexcept;

}  // namespace isthmus
