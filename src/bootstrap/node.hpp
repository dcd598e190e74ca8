// The node of this process. Only this code decides which ranks share memory and can see each other's processes.
#pragma once

#include <cstddef>
#include <string>

namespace isthmus {

// Maximum length of ISTHMUS_NODE in bytes.
inline constexpr std::size_t max_node_name_bytes = 64;

// Returns the id of this process's node. Ranks with equal ids are on the same node. An id consists of the boot
// id of the machine, the pid and user namespaces, and the user. A rank needs all of them to match before it can
// open a peer's memory through /proc and watch its process. Shared memory has no name in a file system, so
// other namespaces do not matter. ISTHMUS_NODE can divide a machine into several nodes, but it cannot merge
// nodes that share no memory.
// Errors: SYSTEM, CONFIG.
std::string own_node_id();

}  // namespace isthmus
