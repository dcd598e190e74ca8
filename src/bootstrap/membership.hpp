// Membership of a communicator: its ranks, their nodes and processes. The first exchange of the ranks
// determines it. Only this code decides which ranks share memory and can see each other's processes.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

namespace isthmus {

struct membership {
  int rank = 0, size = 1;
  int nodes = 1, node_rank = 0, node_size = 1;
  int process_size = 1;
  std::vector<int> node_of, process_of;
  std::vector<std::int64_t> pid_of;
  std::vector<int> parent_rank_of;           // rank in the parent communicator; -1: none
  std::vector<rank_process> rank_processes;  // by rank; pid 0 for ranks of other nodes
  isthmus_device device{};
  bool has_mixed_platforms = false;      // ranks use devices of different platforms
  std::array<std::uint64_t, 2> token{};  // random id of this communicator, equal on all ranks

  // Returns the platform that selection rules match, equal on all ranks. ISTHMUS_PLATFORM_COUNT means "mixed".
  isthmus_platform selection_platform() const {
    return has_mixed_platforms ? ISTHMUS_PLATFORM_COUNT : device.platform;
  }
};

// Maximum length of ISTHMUS_NODE in bytes.
inline constexpr std::size_t max_node_name_bytes = 64;

// Returns the id of this process's node. Ranks with equal ids are on the same node. An id consists of the boot
// id of the machine, the pid and user namespaces, and the user. A rank needs all of them to match before it can
// open a peer's memory through /proc and watch its process. Shared memory has no name in a file system, so
// other namespaces do not matter. ISTHMUS_NODE can divide a machine into several nodes, but it cannot merge
// nodes that share no memory.
// Errors: SYSTEM, CONFIG.
std::string own_node_id();

// Contribution of one rank to the first exchange.
struct rank_info {
  isthmus_device device{};
  std::string rules;             // canonical text of everything that affects selection
  std::optional<error> failure;  // set if this rank cannot participate; sent to the other ranks
};

// Collective first exchange. Either all ranks throw or none.
// Errors: this rank's own failure; REMOTE with the failure of another rank; MISMATCH with the ranks that differ
// in version or rules and the first difference.
membership exchange_membership(bootstrap& ranks, const rank_info& contribution);

}  // namespace isthmus
