// Backend copy_engine: collectives with the devices' copy engines. Transfers between peers use no kernel on the
// compute units; only reduce_scatter launches a kernel, for the reduction.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Asynchronous. Supports devices of one node that can map each other's memory. Built into the core, because it
// only needs the platform's driver, which is loaded at run time.
const isthmus_backend* copy_engine_backend() noexcept;

}  // namespace isthmus
