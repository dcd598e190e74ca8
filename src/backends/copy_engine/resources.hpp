// What all calls of one rank use.
#pragma once

#include <vector>

#include "backends/copy_engine/command_batch.hpp"
#include "backends/copy_engine/peer_memory.hpp"
#include "backends/copy_engine/reduction.hpp"
#include "backends/copy_engine/settings.hpp"
#include "device/owned.hpp"

namespace isthmus::copy_engine {

// A stream of the rank's own, and the commands for it.
struct side_stream {
  side_stream(device_driver& driver, int device, stream_priority priority, std::uint64_t batch_bytes)
      : stream(driver, device, priority), commands(driver, device, batch_bytes), join_event(driver, device) {
    commands.start_on(stream);
  }
  owned_stream stream;
  command_batch commands;
  owned_event join_event;  // the caller's stream waits for it
};

struct rank_resources {
  // Throws isthmus::error.
  rank_resources(device_driver& driver, int device, int rank, int size, const settings& options);

  device_driver& driver;
  int device, rank, size;
  settings options;
  peer_memory memory;
  command_batch main;  // on the stream of the call
  side_stream local_copies;     // own copies beside it
  side_stream combiner;  // the kernels of reduce_scatter, ahead of others that wait for room
  // More streams to peers; the first stream to peers is the caller's.
  std::vector<side_stream> peer_streams;
  // Recorded again and again: a wait that has been issued is for the record before it.
  owned_event fork_event, fetch_event, slot_event;
  owned_pinned progress;  // the id of the call that the stream is in, else 0
  reduction_kernels kernels;
  std::vector<std::uint64_t> slot_uses;  // by rank: how often a slot of its staging area has been used

  std::uint32_t* progress_word() const { return static_cast<std::uint32_t*>(progress.get()); }
};

}  // namespace isthmus::copy_engine
