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
  planner(const crew& ranks, const isthmus_operation& asked) : m_ranks(ranks), m_asked(asked) {}

  void add(const part& by, isthmus_collective collective, std::uint64_t count, isthmus_datatype datatype) {
    if (!by.exists()) return;  // this rank is no holder
    isthmus_operation step{};
    step.collective = collective;
    step.datatype = datatype;
    step.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
    step.count = has_private_counts(row_of(collective)) ? 0 : count;
    std::string text;
    by.explain(step, text);
    const json told = json::parse(text);
    m_steps.push_back({{"subcommunicator", by.name()},
                       {"collective", row_of(collective).name},
                       {"bytes", count * bytes_of(datatype) * blocks(by, collective)},
                       {"backend", told.at("backend")},
                       {"algorithm", told.at("algorithm")},
                       {"rule", told.at("reason")}});
  }
  std::string text() const { return m_steps.dump(); }

 private:
  // Of a buffer with a block for each rank.
  std::uint64_t blocks(const part& by, isthmus_collective collective) const {
    const collective_row& row = row_of(collective);
    if (row.send_extent != extent::count_x_size && !(row.is_reduction && has_counts(row))) return 1;
    const layout& all = m_ranks.ranks;
    return static_cast<std::uint64_t>(&by == &m_ranks.of.within ? all.own_ranks() : all.nodes());
  }

  const crew& m_ranks;
  const isthmus_operation& m_asked;
  json m_steps = json::array();
};

// Of the first chunk.
std::uint64_t first_chunk(const crew& ranks, const isthmus_operation& asked, std::uint64_t width) {
  return std::min(asked.count, ranks.step(asked.count, width));
}

// Of a rank whose island sums on its device.
void plan_device_reduction(planner& steps, const crew& ranks, const isthmus_operation& asked, cut how) {
  const layout& all = ranks.ranks;
  const shards cuts(first_chunk(ranks, asked, bytes_of(asked.datatype)), all.holders(), how);
  const bool spreads = spreads_evenly(all, cuts);
  const std::uint64_t own = cuts.of(all.own_index()).count;
  steps.add(ranks.of.within, spreads ? kinds::sum_to_each : kinds::sum_to_all,
            spreads ? cuts.each : cuts.total(), asked.datatype);
  steps.add(ranks.of.between, asked.collective, own, asked.datatype);
  steps.add(ranks.of.within, spreads ? kinds::blocks_to_all : kinds::copy_to_all, spreads ? cuts.each : own,
            asked.datatype);
}

void plan_message(planner& steps, const crew& ranks, const isthmus_operation& asked, cut how) {
  const collective_row& row = row_of(asked.collective);
  const layout& all = ranks.ranks;
  const isthmus_datatype sums = row.is_reduction ? accumulation_type(asked.datatype, asked.op) : asked.datatype;
  const shards cuts(first_chunk(ranks, asked, bytes_of(sums)), all.holders(), how);
  const piece own = cuts.of(all.own_index());
  const bool whole = cuts.each == 0 || cuts.holders == 1, equal = all.even() && cuts.rest == 0;
  if (row.is_reduction && whole)
    steps.add(ranks.of.within, kinds::sum_to_one, cuts.of(0).count, sums);
  else if (row.is_reduction)
    steps.add(ranks.of.within, equal ? kinds::sum_to_each : kinds::sum_to_each_run, cuts.each, sums);
  else
    steps.add(ranks.of.within, kinds::copy_to_all,
              cuts.rest + cuts.each * static_cast<std::uint64_t>(cuts.holders), sums);
  steps.add(ranks.of.between, asked.collective, own.count, sums);
  if (row.recv_ranks == buffer_ranks::root)
    steps.add(ranks.of.within, kinds::runs_to_one, own.count, asked.datatype);
  else if (cuts.each == 0)
    steps.add(ranks.of.within, kinds::copy_to_all, cuts.rest, asked.datatype);
  else
    steps.add(ranks.of.within, equal ? kinds::blocks_to_all : kinds::runs_to_all, own.count, asked.datatype);
}

}  // namespace

std::string plan_of(const crew& ranks, const isthmus_operation& asked, cut how) {
  const collective_row& row = row_of(asked.collective);
  const parts& of = ranks.of;
  const auto blocks = static_cast<std::uint64_t>(ranks.ranks.nodes());
  planner steps(ranks, asked);
  if (is_cut(row) && ranks.device) {
    plan_device_reduction(steps, ranks, asked, how);
  } else if (is_cut(row)) {
    plan_message(steps, ranks, asked, how);
  } else if (row.is_reduction) {
    const isthmus_datatype sums = accumulation_type(asked.datatype, asked.op);
    const bool even = ranks.ranks.even() && !has_counts(row);
    const isthmus_collective each = even ? kinds::sum_to_each : kinds::sum_to_each_run;
    const std::uint64_t count =
        first_chunk(ranks, asked, bytes_of(sums) * static_cast<std::uint64_t>(ranks.ranks.size()));
    steps.add(of.within, each, count * blocks, sums);
    steps.add(of.between, each, count, sums);
  } else if (is_point_to_point(asked.collective)) {
    const bool near = ranks.ranks.island_of(asked.root) == ranks.ranks.own_island();
    isthmus_operation message = asked;
    steps.add(near ? of.within : of.across, message.collective, asked.count, asked.datatype);
  } else if (row.send_ranks == buffer_ranks::none) {
    steps.add(of.within, kinds::meet, 0, asked.datatype);
    steps.add(of.between, kinds::meet, 0, asked.datatype);
  } else if (row.send_extent == extent::count && row.recv_ranks == buffer_ranks::all) {
    steps.add(of.between, kinds::blocks_to_all, asked.count, asked.datatype);
    steps.add(of.within, kinds::blocks_to_all, asked.count * blocks, asked.datatype);
  } else {
    steps.add(of.within, kinds::runs_to_each, asked.count, asked.datatype);
    steps.add(of.across, kinds::runs_to_each, asked.count, asked.datatype);
  }
  return steps.text();
}

}  // namespace isthmus::hierarchical
