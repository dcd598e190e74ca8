// The plan of a call, for explain: the collective of each step, its size, and the backend that the rules of its
// subcommunicator select.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/elements.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

using nlohmann::json;

class plan_writer {
 public:
  plan_writer(const node_hierarchy& hierarchy, const isthmus_operation& operation)
      : m_hierarchy(hierarchy), m_operation(operation) {}

  // `calls`: the number of such calls for one chunk.
  void add(const subcommunicator& comm, isthmus_collective collective, std::uint64_t count,
           isthmus_datatype datatype, int calls = 1) {
    if (!comm.is_member()) return;  // this rank is not a leader
    isthmus_operation step{};
    step.collective = collective;
    step.datatype = datatype;
    step.op = partial_op(m_operation.op);
    step.count = has_private_counts(row_of(collective)) ? 0 : count;
    std::string text;
    comm.explain(step, text);
    const json explanation = json::parse(text);
    m_steps.push_back({{"subcommunicator", comm.name()},
                       {"collective", row_of(collective).name},
                       {"calls", calls},
                       {"bytes", count * bytes_of(datatype) * blocks(comm, collective)},
                       {"backend", explanation.at("backend")},
                       {"algorithm", explanation.at("algorithm")},
                       {"rule", explanation.at("reason")}});
  }
  std::string text() const { return m_steps.dump(); }

 private:
  // Returns the number of blocks in a buffer with one block per rank, otherwise 1.
  std::uint64_t blocks(const subcommunicator& comm, isthmus_collective collective) const {
    const collective_row& row = row_of(collective);
    if (row.send_extent != extent::count_x_size && !(row.is_reduction && has_counts(row))) return 1;
    const rank_layout& layout = m_hierarchy.layout;
    return static_cast<std::uint64_t>(&comm == &m_hierarchy.comms.intra_node ? layout.own_node_size()
                                                                             : layout.nodes());
  }

  const node_hierarchy& m_hierarchy;
  const isthmus_operation& m_operation;
  json m_steps = json::array();
};

// Returns the number of elements of the first chunk.
std::uint64_t first_chunk(const node_hierarchy& hierarchy, const isthmus_operation& operation,
                          std::uint64_t width) {
  return std::min(operation.count, hierarchy.step(operation.count, width));
}

// Returns true if the chunks of the blocks of this rank's node are adjacent in the user's buffer.
bool are_adjacent(const rank_layout& layout, bool is_one_chunk) {
  const auto& node = layout.members(layout.own_node());
  return is_one_chunk && node.back() - node.front() == layout.own_node_size() - 1;
}

// Returns the plan of a rank whose node reduces on its devices.
void plan_device_reduction(plan_writer& steps, const node_hierarchy& hierarchy,
                           const isthmus_operation& operation, shard_mode mode) {
  const rank_layout& layout = hierarchy.layout;
  const shard_map shards(first_chunk(hierarchy, operation, bytes_of(operation.datatype)), layout.leaders(),
                         mode);
  const bool is_evenly_sharded = has_equal_shards(layout, shards);
  const std::uint64_t own = shards.shard(layout.own_index()).count;
  steps.add(hierarchy.comms.intra_node, is_evenly_sharded ? reduce_scatter_phase : allreduce_phase,
            is_evenly_sharded ? shards.shard_elements : shards.total(), operation.datatype);
  steps.add(hierarchy.comms.inter_node, operation.collective, own, operation.datatype);
  steps.add(hierarchy.comms.intra_node, is_evenly_sharded ? allgather_phase : broadcast_phase,
            is_evenly_sharded ? shards.shard_elements : own, operation.datatype);
}

void plan_sharded(plan_writer& steps, const node_hierarchy& hierarchy, const isthmus_operation& operation,
                  shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  const rank_layout& layout = hierarchy.layout;
  const isthmus_datatype sum_type =
      row.is_reduction ? accumulation_type(operation.datatype, operation.op) : operation.datatype;
  const shard_map shards(first_chunk(hierarchy, operation, bytes_of(sum_type)), layout.leaders(), mode);
  const element_range own = shards.shard(layout.own_index());
  const bool is_undivided = shards.shard_elements == 0 || shards.leaders == 1,
             is_uniform = layout.is_even() && shards.remainder == 0;
  if (row.is_reduction && is_undivided)
    steps.add(hierarchy.comms.intra_node, reduce_phase, shards.shard(0).count, sum_type);
  else if (row.is_reduction)
    steps.add(hierarchy.comms.intra_node, is_uniform ? reduce_scatter_phase : reduce_scatterv_phase,
              shards.shard_elements, sum_type);
  else
    steps.add(hierarchy.comms.intra_node, broadcast_phase,
              shards.remainder + shards.shard_elements * static_cast<std::uint64_t>(shards.leaders), sum_type);
  steps.add(hierarchy.comms.inter_node, operation.collective, own.count, sum_type);
  if (row.recv_ranks == buffer_ranks::root)
    steps.add(hierarchy.comms.intra_node, gatherv_phase, own.count, operation.datatype);
  else if (shards.shard_elements == 0)
    steps.add(hierarchy.comms.intra_node, broadcast_phase, shards.remainder, operation.datatype);
  else
    steps.add(hierarchy.comms.intra_node, is_uniform ? allgather_phase : allgatherv_phase, own.count,
              operation.datatype);
}

}  // namespace

std::string plan_steps(const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  const subcommunicators& comms = hierarchy.comms;
  const rank_layout& layout = hierarchy.layout;
  const auto ranks = static_cast<std::uint64_t>(layout.size());
  const bool is_even = layout.is_even();
  int groups = 0;
  for (int node = 0; node < layout.nodes(); ++node) groups += layout.group_count(node);
  plan_writer steps(hierarchy, operation);
  if (is_sharded(row) && hierarchy.device) {
    plan_device_reduction(steps, hierarchy, operation, mode);
  } else if (is_sharded(row)) {
    plan_sharded(steps, hierarchy, operation, mode);
  } else if (row.is_reduction) {
    const isthmus_datatype sum_type = accumulation_type(operation.datatype, operation.op);
    const std::uint64_t count = first_chunk(hierarchy, operation, bytes_of(sum_type) * ranks);
    const bool is_uniform = is_even && !has_counts(row);
    const bool is_one_chunk = is_uniform && count == operation.count && sum_type == operation.datatype;
    steps.add(comms.intra_node,
              are_adjacent(layout, is_one_chunk) ? reduce_scatter_phase : reduce_scatterv_phase, count,
              sum_type, groups);
    steps.add(comms.inter_node, is_uniform ? reduce_scatter_phase : reduce_scatterv_phase, count, sum_type);
  } else if (is_point_to_point(operation.collective)) {
    const bool is_root_on_own_node = layout.node_of(operation.root) == layout.own_node();
    isthmus_operation message = operation;
    steps.add(is_root_on_own_node ? comms.intra_node : comms.all_ranks_comm, message.collective,
              operation.count, operation.datatype);
  } else if (row.send_ranks == buffer_ranks::none) {
    steps.add(comms.intra_node, barrier_phase, 0, operation.datatype);
    steps.add(comms.inter_node, barrier_phase, 0, operation.datatype);
  } else if (row.send_extent == extent::count && row.recv_ranks == buffer_ranks::all) {
    const std::uint64_t count = first_chunk(hierarchy, operation, bytes_of(operation.datatype) * ranks);
    const bool is_one_chunk = count == operation.count && is_even && !has_counts(row);
    steps.add(comms.inter_node,
              is_one_chunk && layout.own_node_size() == 1 ? allgather_phase : allgatherv_phase, count,
              operation.datatype, layout.largest_group_count());
    steps.add(comms.intra_node, are_adjacent(layout, is_one_chunk) ? allgather_phase : allgatherv_phase, count,
              operation.datatype, groups);
  } else {
    steps.add(comms.intra_node, alltoallv_phase, operation.count, operation.datatype);
    steps.add(comms.all_ranks_comm, alltoallv_phase, operation.count, operation.datatype);
  }
  return steps.text();
}

}  // namespace isthmus::hierarchical
