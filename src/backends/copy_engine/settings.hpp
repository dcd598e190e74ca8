// The configuration options backend.copy_engine.*. They must be equal on all ranks.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <string>

namespace isthmus::copy_engine {

struct settings {
  std::uint64_t staging_bytes =
      0;  // size of a rank's staging area, both slots together; 0: staging is disabled
  std::uint64_t wait_all_bytes =
      0;                          // up to this total size, a rank waits for all peers before it copies from any
  int streams = 1;                // number of streams over which the peers are distributed; 0: one per peer
  std::uint64_t batch_bytes = 0;  // minimum total size for which copies between devices are issued as a batch
  bool can_share_device = false;  // allow ranks of several processes on one device
  int reduction_blocks = 1024;    // maximum number of thread blocks of the reduce_scatter kernel
};

// Returns the first problem, or "". Missing options get the built-in defaults (selection/defaults.toml) or
// those of the platform.
std::string read_settings(const isthmus_backend_context& context, settings& result);

}  // namespace isthmus::copy_engine
