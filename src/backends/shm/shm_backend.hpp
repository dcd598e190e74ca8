// The shm backend: collectives in shared memory for the ranks of one machine. The ranks may be
// threads or processes.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

const isthmus_backend* shm_backend() noexcept;

}  // namespace isthmus
