// The hierarchical backend: collectives across nodes, composed of intra-node and inter-node collectives
// of other backends.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Blocking: yes. Available if the ranks are on several nodes or platforms and other backends can
// serve the subcommunicators.
const isthmus_backend* hierarchical_backend() noexcept;

}  // namespace isthmus
