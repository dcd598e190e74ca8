// Sets up the shared segments of a communicator. If this is impossible on any rank, all ranks agree
// on the failure.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <vector>

#include "backends/shm/segment_layout.hpp"
#include "backends/shm/write_gate.hpp"
#include "memory/segment.hpp"

namespace isthmus::shm {

struct tuning_parameters {
  std::uint64_t spins;  // number of polls of a flag before the rank yields its core
  std::uint64_t
      streaming_bytes;          // operations that write more bytes, summed over all ranks, use streaming stores
  std::uint64_t address_bytes;  // longer messages are copied directly from the sender's buffer
};

struct segment_connection {
  std::vector<std::shared_ptr<shared_segment>> segments;  // by rank
  std::unique_ptr<write_gate> own_gate;
  std::vector<std::byte*> gate_addresses;  // by rank, in that rank's process
  geometry sizes;
  tuning_parameters parameters;
  bool can_kernel_copy = false;  // the kernel copies between all processes of the ranks
};

// Default limit for all segments of a communicator together, for up to 64 ranks. With more ranks the minimum
// sizes of cells and slot blocks may exceed it.
inline constexpr std::uint64_t max_segments_bytes = 64 << 20;
// Minimum size of one rank's block in a slot.
inline constexpr std::uint64_t min_slot_block_bytes = 16 * line_bytes;
geometry default_geometry(std::uint64_t ranks);

// Collective.
// Errors: UNSUPPORTED on all ranks if any rank cannot access another; CONFIG for invalid options; MISMATCH for
// options that differ between ranks. All failures have been reported through context.fail.
isthmus_status connect(const isthmus_backend_context& context, segment_connection& result);

}  // namespace isthmus::shm
