// The collectives of THE TABLE, put together of those of the parts.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <string>

#include "backends/hierarchical/pipeline.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {

// What a large message between islands is cut into: a shard for each holder, or one for the first of them.
enum class shard_mode : std::uint8_t { sharded, single_leader };

// One message that is cut so: the same on all ranks, before or after.
constexpr bool is_sharded(const collective_row& row) {
  return row.send_extent == extent::count && row.recv_extent == extent::count && row.peer != peer_kind::peer;
}

// All throw subcommunicator_failure. They presume a validated operation.
void run_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
// The same on a rank that has a device_staging, for what device_sums serves.
void run_device_reduction(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
void run_broadcast(node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);
void run_allgather(node_hierarchy& hierarchy, const isthmus_operation& operation);  // every block to every rank
void run_barrier(const node_hierarchy& hierarchy);
// Every block straight from rank to rank, in one call within and one between islands.
void run_alltoall(node_hierarchy& hierarchy, const isthmus_operation& operation);
// The sends and receives among these, together.
void run_messages(const node_hierarchy& hierarchy, const isthmus_operation* operations, std::size_t n);

// The steps of a call, in JSON. Throws subcommunicator_failure.
std::string plan_steps(const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode);

}  // namespace isthmus::hierarchical
