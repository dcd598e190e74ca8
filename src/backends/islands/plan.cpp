// What a call would be made of, for explain: each step's collective, size, and what its part's rules choose for
// it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "backends/islands/composer.hpp"
#include "backends/islands/convert.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

using nlohmann::json;

class planner {
 public:
  planner(const node_hierarchy& hierarchy, const isthmus_operation& asked) : m_hierarchy(ranks), m_asked(asked) {}

  void add(const subcommunicator& comm, isthmus_collective collective, std::uint64_t count, isthmus_datatype datatype) {
    if (!comm.exists()) return;  // this rank is no holder
    isthmus_operation step{};
    step.collective = collective;
    step.datatype = datatype;
    step.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
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
    return static_cast<std::uint64_t>(&comm == &m_hierarchy.comms.intra_node ? all.own_node_size() : all.nodes());
  }

  const node_hierarchy& m_hierarchy;
  const isthmus_operation& m_asked;
  json m_steps = json::array();
};

// Of the first chunk.
std::uint64_t first_chunk(const node_hierarchy& hierarchy, const isthmus_operation& asked, std::uint64_t width) {
  return std::min(asked.count, hierarchy.step(asked.count, width));
}

// Of a rank whose island sums on its device.
void plan_device_reduction(planner& steps, const node_hierarchy& hierarchy, const isthmus_operation& asked, cut how) {
  const rank_layout& layout = hierarchy.layout;
  const shards cuts(first_chunk(ranks, asked, bytes_of(asked.datatype)), all.leaders(), how);
  const bool spreads = spreads_evenly(all, cuts);
  const std::uint64_t own = cuts.of(all.own_index()).count;
  steps.add(hierarchy.comms.intra_node, spreads ? kinds::sum_to_each : kinds::sum_to_all,
            spreads ? cuts.each : cuts.total(), asked.datatype);
  steps.add(hierarchy.comms.inter_node, asked.collective, own, asked.datatype);
  steps.add(hierarchy.comms.intra_node, spreads ? kinds::blocks_to_all : kinds::copy_to_all, spreads ? cuts.each : own,
            asked.datatype);
}

void plan_message(planner& steps, const node_hierarchy& hierarchy, const isthmus_operation& asked, cut how) {
  const collective_row& row = row_of(asked.collective);
  const rank_layout& layout = hierarchy.layout;
  const isthmus_datatype sums = row.is_reduction ? accumulation_type(asked.datatype, asked.op) : asked.datatype;
  const shards cuts(first_chunk(ranks, asked, bytes_of(sums)), all.leaders(), how);
  const piece own = cuts.of(all.own_index());
  const bool whole = cuts.each == 0 || cuts.leaders == 1, equal = all.is_even() && cuts.rest == 0;
  if (row.is_reduction && whole)
    steps.add(hierarchy.comms.intra_node, kinds::sum_to_one, cuts.of(0).count, sums);
  else if (row.is_reduction)
    steps.add(hierarchy.comms.intra_node, equal ? kinds::sum_to_each : kinds::sum_to_each_run, cuts.each, sums);
  else
    steps.add(hierarchy.comms.intra_node, kinds::copy_to_all,
              cuts.rest + cuts.each * static_cast<std::uint64_t>(cuts.leaders), sums);
  steps.add(hierarchy.comms.inter_node, asked.collective, own.count, sums);
  if (row.recv_ranks == buffer_ranks::root)
    steps.add(hierarchy.comms.intra_node, kinds::runs_to_one, own.count, asked.datatype);
  else if (cuts.each == 0)
    steps.add(hierarchy.comms.intra_node, kinds::copy_to_all, cuts.rest, asked.datatype);
  else
    steps.add(hierarchy.comms.intra_node, equal ? kinds::blocks_to_all : kinds::runs_to_all, own.count, asked.datatype);
}

}  // namespace

std::string plan_of(const node_hierarchy& hierarchy, const isthmus_operation& asked, cut how) {
  const collective_row& row = row_of(asked.collective);
  const subcommunicators& of = hierarchy.comms;
  const auto blocks = static_cast<std::uint64_t>(hierarchy.layout.nodes());
  planner steps(ranks, asked);
  if (is_cut(row) && hierarchy.device) {
    plan_device_reduction(steps, ranks, asked, how);
  } else if (is_cut(row)) {
    plan_message(steps, ranks, asked, how);
  } else if (row.is_reduction) {
    const isthmus_datatype sums = accumulation_type(asked.datatype, asked.op);
    const bool even = hierarchy.layout.is_even() && !has_counts(row);
    const isthmus_collective each = even ? kinds::sum_to_each : kinds::sum_to_each_run;
    const std::uint64_t count =
        first_chunk(ranks, asked, bytes_of(sums) * static_cast<std::uint64_t>(hierarchy.layout.size()));
    steps.add(of.intra_node, each, count * blocks, sums);
    steps.add(of.inter_node, each, count, sums);
  } else if (is_point_to_point(asked.collective)) {
    const bool near = hierarchy.layout.node_of(asked.root) == hierarchy.layout.own_node();
    isthmus_operation message = asked;
    steps.add(near ? of.intra_node : of.all_ranks_comm, message.collective, asked.count, asked.datatype);
  } else if (row.send_ranks == buffer_ranks::none) {
    steps.add(of.intra_node, kinds::meet, 0, asked.datatype);
    steps.add(of.inter_node, kinds::meet, 0, asked.datatype);
  } else if (row.send_extent == extent::count && row.recv_ranks == buffer_ranks::all) {
    steps.add(of.inter_node, kinds::blocks_to_all, asked.count, asked.datatype);
    steps.add(of.intra_node, kinds::blocks_to_all, asked.count * blocks, asked.datatype);
  } else {
    steps.add(of.intra_node, kinds::runs_to_each, asked.count, asked.datatype);
    steps.add(of.all_ranks_comm, kinds::runs_to_each, asked.count, asked.datatype);
  }
  return steps.text();
}

}  // namespace isthmus::hierarchical
