// Which node this process is on: the one place that decides which ranks share memory and see each other's
// processes.
#pragma once

#include <cstddef>
#include <string>

namespace isthmus {

// Longest value of ISTHMUS_NODE, in bytes.
inline constexpr std::size_t max_node_name_bytes = 64;

// The node of this process as text: ranks with equal text are on one node. The same boot of one machine, pid
// and user namespace and user: what opening a peer's memory through /proc and watching its process need. Memory
// that ranks share has no name in a file system, and messages are no part of it, so other namespaces don't
// matter. ISTHMUS_NODE divides a machine further; it can't join what shares no memory. Throws error (SYSTEM,
// CONFIG).
std::string own_node_id();

}  // namespace isthmus
