// How the ranks of a communicator come to share memory, or agree that they can't.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <vector>

#include "backends/shm/write_gate.hpp"
#include "backends/shm/segment_layout.hpp"
#include "memory/segment.hpp"

namespace isthmus::shm {

struct tuning_parameters {
  std::uint64_t spins;            // looks at a flag before the core is offered to others
  std::uint64_t streaming_bytes;  // an operation that writes more, over all ranks, writes past the cache
  std::uint64_t address_bytes;    // longer messages are read from the sender's own buffer
};

struct connection {
  std::vector<std::shared_ptr<shared_segment>> segments;  // by rank
  std::unique_ptr<write_gate> own_gate;
  std::vector<std::byte*> gate_addresses;  // by rank, in that rank's process
  geometry sizes;
  tuning_parameters parameters;
  bool can_kernel_copy = false;  // every rank may copy from and to the memory of every other process of the ranks
};

// All segments of a communicator together, up to 64 ranks, where no option says otherwise; with more ranks
// every pair of them still needs its cells, and every rank its part of a slot.
inline constexpr std::uint64_t max_segments_bytes = 64 << 20;
// Of a slot for each rank, at least.
inline constexpr std::uint64_t min_slot_block_bytes = 16 * line_bytes;
geometry default_geometry(std::uint64_t ranks);

// Collective. ISTHMUS_ERROR_UNSUPPORTED on all ranks when one of them can't reach another; CONFIG and
// MISMATCH for options that are wrong or differ. Failures have gone through context.fail.
isthmus_status connect(const isthmus_backend_context& context, connection& result);

}  // namespace isthmus::shm
