// What a call would be made of, for explain: each step's collective, size, and what its part's rules choose for
// it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/convert.hpp"
#include "backends/hierarchical/phases.hpp"
#include "backends/hierarchical/shards.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

using nlohmann::json;

class planner {
 public:
  planner(const node_hierarchy& hierarchy, const isthmus_operation& operation) : m_hierarchy(hierarchy), m_operation(operation) {}

  void add(const subcommunicator& comm, isthmus_collective collective, std::uint64_t count, isthmus_datatype datatype) {
    if (!comm.exists()) return;  // this rank is no holder
    isthmus_operation step{};
    step.collective = collective;
    step.datatype = datatype;
    step.op = m_operation.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_operation.op;
    step.count = has_private_counts(row_of(collective)) ? 0 : count;
    std::string text;
    comm.explain(step, text);
    const json told = json::parse(text);
    m_steps.push_back({{"subcommunicator", comm.name()},
                       {"collective", row_of(collective).name},
                       {"bytes", count * bytes_of(datatype) * blocks(comm, collective)},
                       {"backend", told.at("backend")},
                       {"algorithm", told.at("algorithm")},
                       {"rule", told.at("reason")}});
  }
  std::string text() const { return m_steps.dump(); }

 private:
  // Of a buffer with a block for each rank.
  std::uint64_t blocks(const subcommunicator& comm, isthmus_collective collective) const {
    const collective_row& row = row_of(collective);
    if (row.send_extent != extent::count_x_size && !(row.is_reduction && has_counts(row))) return 1;
    const rank_layout& layout = m_hierarchy.layout;
    return static_cast<std::uint64_t>(&comm == &m_hierarchy.comms.intra_node ? layout.own_node_size() : layout.nodes());
  }

  const node_hierarchy& m_hierarchy;
  const isthmus_operation& m_operation;
  json m_steps = json::array();
};

// Of the first chunk.
std::uint64_t first_chunk(const node_hierarchy& hierarchy, const isthmus_operation& operation, std::uint64_t width) {
  return std::min(operation.count, hierarchy.step(operation.count, width));
}

// Of a rank whose island sums on its device.
void plan_device_reduction(planner& steps, const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const rank_layout& layout = hierarchy.layout;
  const shard_map shards(first_chunk(hierarchy, operation, bytes_of(operation.datatype)), layout.leaders(), mode);
  const bool spreads = has_equal_shards(layout, shards);
  const std::uint64_t own = shards.shard(layout.own_index()).count;
  steps.add(hierarchy.comms.intra_node, spreads ? phase::reduce_scatter : phase::allreduce,
            spreads ? shards.shard_elements : shards.total(), operation.datatype);
  steps.add(hierarchy.comms.inter_node, operation.collective, own, operation.datatype);
  steps.add(hierarchy.comms.intra_node, spreads ? phase::allgather : phase::broadcast, spreads ? shards.shard_elements : own,
            operation.datatype);
}

void plan_sharded(planner& steps, const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  const rank_layout& layout = hierarchy.layout;
  const isthmus_datatype sums = row.is_reduction ? accumulation_type(operation.datatype, operation.op) : operation.datatype;
  const shard_map shards(first_chunk(hierarchy, operation, bytes_of(sums)), layout.leaders(), mode);
  const element_range own = shards.shard(layout.own_index());
  const bool whole = shards.shard_elements == 0 || shards.leaders == 1, equal = layout.is_even() && shards.remainder == 0;
  if (row.is_reduction && whole)
    steps.add(hierarchy.comms.intra_node, phase::reduce, shards.shard(0).count, sums);
  else if (row.is_reduction)
    steps.add(hierarchy.comms.intra_node, equal ? phase::reduce_scatter : phase::reduce_scatterv, shards.shard_elements, sums);
  else
    steps.add(hierarchy.comms.intra_node, phase::broadcast,
              shards.remainder + shards.shard_elements * static_cast<std::uint64_t>(shards.leaders), sums);
  steps.add(hierarchy.comms.inter_node, operation.collective, own.count, sums);
  if (row.recv_ranks == buffer_ranks::root)
    steps.add(hierarchy.comms.intra_node, phase::gatherv, own.count, operation.datatype);
  else if (shards.shard_elements == 0)
    steps.add(hierarchy.comms.intra_node, phase::broadcast, shards.remainder, operation.datatype);
  else
    steps.add(hierarchy.comms.intra_node, equal ? phase::allgather : phase::allgatherv, own.count, operation.datatype);
}

}  // namespace

std::string plan_steps(const node_hierarchy& hierarchy, const isthmus_operation& operation, shard_mode mode) {
  const collective_row& row = row_of(operation.collective);
  const subcommunicators& of = hierarchy.comms;
  const auto blocks = static_cast<std::uint64_t>(hierarchy.layout.nodes());
  planner steps(hierarchy, operation);
  if (is_sharded(row) && hierarchy.device) {
    plan_device_reduction(steps, hierarchy, operation, mode);
  } else if (is_sharded(row)) {
    plan_sharded(steps, hierarchy, operation, mode);
  } else if (row.is_reduction) {
    const isthmus_datatype sums = accumulation_type(operation.datatype, operation.op);
    const bool even = hierarchy.layout.is_even() && !has_counts(row);
    const isthmus_collective each = even ? phase::reduce_scatter : phase::reduce_scatterv;
    const std::uint64_t count =
        first_chunk(hierarchy, operation, bytes_of(sums) * static_cast<std::uint64_t>(hierarchy.layout.size()));
    steps.add(of.intra_node, each, count * blocks, sums);
    steps.add(of.inter_node, each, count, sums);
  } else if (is_point_to_point(operation.collective)) {
    const bool near = hierarchy.layout.node_of(operation.root) == hierarchy.layout.own_node();
    isthmus_operation message = operation;
    steps.add(near ? of.intra_node : of.all_ranks_comm, message.collective, operation.count, operation.datatype);
  } else if (row.send_ranks == buffer_ranks::none) {
    steps.add(of.intra_node, phase::barrier, 0, operation.datatype);
    steps.add(of.inter_node, phase::barrier, 0, operation.datatype);
  } else if (row.send_extent == extent::count && row.recv_ranks == buffer_ranks::all) {
    steps.add(of.inter_node, phase::allgather, operation.count, operation.datatype);
    steps.add(of.intra_node, phase::allgather, operation.count * blocks, operation.datatype);
  } else {
    steps.add(of.intra_node, phase::alltoallv, operation.count, operation.datatype);
    steps.add(of.all_ranks_comm, phase::alltoallv, operation.count, operation.datatype);
  }
  return steps.text();
}

}  // namespace isthmus::hierarchical
