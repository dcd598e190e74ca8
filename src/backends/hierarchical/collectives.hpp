// The hierarchical backend: collectives across nodes, composed of collectives of other backends.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <string>

#include "backends/hierarchical/pipeline.hpp"
#include "base/tables.hpp"

namespace isthmus {

// Blocking: yes. Available if the ranks are on several nodes or platforms and other backends can
// serve the subcommunicators.
const isthmus_backend* hierarchical_backend() noexcept;

namespace hierarchical {

// ---- collectives of the subcommunicators, looked up in the collective table by their data layout -------------

consteval isthmus_collective find_phase(bool is_reduction, buffer_ranks send_ranks, extent send,
                                        buffer_ranks recv_ranks, extent recv) {
  for (int i = 0; i < ISTHMUS_COLLECTIVE_COUNT; ++i) {
    const auto each = static_cast<isthmus_collective>(i);
    const collective_row& row = row_of(each);
    if (row.peer != peer_kind::peer && row.is_reduction == is_reduction && row.send_ranks == send_ranks &&
        row.send_extent == send && row.recv_ranks == recv_ranks && row.recv_extent == recv)
      return each;
  }
  throw "the collective table has no such collective";  // at compile time
}

inline constexpr auto broadcast_phase =
    find_phase(false, buffer_ranks::root, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto reduce_phase =
    find_phase(true, buffer_ranks::all, extent::count, buffer_ranks::root, extent::count);
inline constexpr auto allreduce_phase =
    find_phase(true, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count);
inline constexpr auto reduce_scatter_phase =
    find_phase(true, buffer_ranks::all, extent::count_x_size, buffer_ranks::all, extent::count);
inline constexpr auto reduce_scatterv_phase =
    find_phase(true, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::count);
inline constexpr auto allgather_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::count_x_size);
inline constexpr auto allgatherv_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::all, extent::counts);
inline constexpr auto gatherv_phase =
    find_phase(false, buffer_ranks::all, extent::count, buffer_ranks::root, extent::counts);
inline constexpr auto alltoallv_phase =
    find_phase(false, buffer_ranks::all, extent::counts, buffer_ranks::all, extent::counts);
inline constexpr auto barrier_phase =
    find_phase(false, buffer_ranks::none, extent::nothing, buffer_ranks::none, extent::nothing);

// An operation with one message or block per rank.
inline isthmus_operation make_operation(isthmus_collective collective, isthmus_datatype datatype,
                                        const void* source, void* destination, std::uint64_t count,
                                        int root = 0, isthmus_reduction_op op = ISTHMUS_SUM) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = datatype;
  operation.op = op;
  operation.count = count;
  operation.root = root;
  operation.send_buf = source;
  operation.recv_buf = destination;
  return operation;
}
// The operation of partial results: the total of an average is divided at the end.
constexpr isthmus_reduction_op partial_op(isthmus_reduction_op op) {
  return op == ISTHMUS_AVG ? ISTHMUS_SUM : op;
}

// ---- collectives of the backend --------------------------------------------------------------------------

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

}  // namespace hierarchical
}  // namespace isthmus
