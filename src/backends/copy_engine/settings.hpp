// The options backend.copy_engine.* of the configuration, which are equal on all ranks.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <string>

namespace isthmus::copy_engine {

struct settings {
  std::uint64_t staging_bytes = 0;   // of a rank's transit area, both slots together; 0: nothing can be staged
  std::uint64_t wait_all_bytes = 0;  // up to so many bytes from all peers, a rank waits for all of them at once
  int streams = 1;                   // among which the peers are divided; 0: one for each
  std::uint64_t batch_bytes = 0;     // from so many bytes on, copies between devices are issued as a batch
  bool share_device = false;         // with ranks of other processes
  int reduction_blocks = 1024;       // of the kernel of reduce_scatter, at most
};

// The first problem in words, or "". Absent options take the built-in defaults (selection/defaults.toml) or
// those of the platform.
std::string read_settings(const isthmus_backend_context& context, settings& result);

}  // namespace isthmus::copy_engine
