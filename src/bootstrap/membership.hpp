// Who the ranks of a communicator are and where they live; the result of the first exchange.
#pragma once

#include <isthmus/types.h>

#include <array>
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
  std::vector<int> parent_rank_of;         // in the communicator that this one was made from; -1: in none
  std::vector<rank_process> rank_processes;  // by rank; pid 0 for those of other machines
  isthmus_device device{};
  bool has_mixed_platforms = false;                 // the ranks' devices are of several platforms
  std::array<std::uint64_t, 2> token{};  // random, the same on all ranks: names this communicator

  // What rules ask for, equal on all ranks: behind the last platform of THE TABLE stands "mixed".
  isthmus_platform selection_platform() const { return has_mixed_platforms ? ISTHMUS_PLATFORM_COUNT : device.platform; }
};

// What one rank brings to the first exchange.
struct rank_info {
  isthmus_device device{};
  std::string rules;             // canonical text of everything that decides selection
  std::optional<error> failure;  // this rank cannot take part; the others are told why
  int parent_rank = -1;
};

// Collective. Throws this rank's own failure, or error (REMOTE) with another rank's, or (MISMATCH) that
// names the ranks that differ in version or rules and the first difference. All ranks throw
// or none.
membership exchange_membership(bootstrap& ranks, const rank_info& mine);

}  // namespace isthmus
