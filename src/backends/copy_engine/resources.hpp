// Streams, events and memory that all calls of one rank share.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/copy_engine/command_batch.hpp"
#include "backends/copy_engine/peer_memory.hpp"
#include "backends/copy_engine/reduction.hpp"
#include "device/owned.hpp"

namespace isthmus::copy_engine {

// The configuration options backend.copy_engine.*. They must be equal on all ranks.
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

// An additional stream of the rank and its command batch.
struct side_stream {
  side_stream(device_driver& driver, int device, stream_priority priority, std::uint64_t batch_bytes)
      : stream(driver, device, priority), commands(driver, device, batch_bytes), join_event(driver, device) {
    commands.start_on(stream);
  }
  owned_stream stream;
  command_batch commands;
  owned_event join_event;  // the main stream waits for it
};

struct rank_resources {
  // Errors: throws isthmus::error.
  rank_resources(device_driver& driver, int device, int rank, int size, const settings& options);

  device_driver& driver;
  int device, rank, size;
  settings options;
  peer_memory memory;
  command_batch main;        // on the stream of the call
  side_stream local_copies;  // copies within the device, concurrent with the transfers
  side_stream
      combiner;  // kernels of reduce_scatter; raised priority, so they start before other queued kernels
  // Additional streams for transfers with peers; the first one is the main stream.
  std::vector<side_stream> peer_streams;
  // Reused events: an issued wait refers to the record before it.
  owned_event fork_event, fetch_event, slot_event;
  owned_pinned progress;  // the id of the call that the stream executes; 0: none
  reduction_kernels kernels;
  std::vector<std::uint64_t> slot_uses;  // by rank: number of uses of its staging slots

  std::uint32_t* progress_word() const { return static_cast<std::uint32_t*>(progress.get()); }
};

}  // namespace isthmus::copy_engine
