// Ranks on several nodes: the work of other backends put together, within each node and between them.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Blocking. Available where the ranks are on several nodes and backends work within and between them.
const isthmus_backend* hierarchical_backend() noexcept;

}  // namespace isthmus
