// The collectives of the hierarchical backend, composed of collectives of its subcommunicators.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <string>

#include "backends/hierarchical/pipeline.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {

// Division of a message for the inter-node phase: one shard per leader, or everything on the first leader.
enum class shard_mode : std::uint8_t { sharded, single_leader };

// True if the message is divided into shards: both buffers hold one message of `count` elements.
constexpr bool is_sharded(const collective_row& row) {
  return row.send_extent == extent::count && row.recv_extent == extent::count && row.peer != peer_kind::peer;
}

// Precondition of all: a validated operation.
// Errors: all throw subcommunicator_failure.
void run_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
// Requires a device_staging and an operation that device_reducer supports.
void run_device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
void run_broadcast(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
void run_allgather(node_hierarchy& hierarchy, const isthmus_operation& operation);  // allgather and allgatherv
void run_barrier(const node_hierarchy& hierarchy);
// Sends every block directly from source to destination, in one intra-node and one inter-node alltoallv.
void run_alltoall(node_hierarchy& hierarchy, const isthmus_operation& operation);
// Runs the send and recv operations of the group together.
void run_messages(const node_hierarchy& hierarchy, const isthmus_operation* operations, std::size_t n);

// Returns the steps of a call as JSON. Errors: throws subcommunicator_failure.
std::string plan_steps(const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);

}  // namespace isthmus::hierarchical
