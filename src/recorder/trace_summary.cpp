#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "recorder/format.hpp"
#include "recorder/trace.hpp"

namespace isthmus::recorder {
namespace {

using json = nlohmann::json;

constexpr std::size_t max_worst_calls = 5;  // per communicator; the calls with the longest waits

double to_us(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

const char* state_of(const recorded_rank& rank) {
  if (rank.is_closed) return "ended";
  if (rank.is_remote) return "unknown";
  return rank.process == process_state::exited ? "died" : "running";
}

json describe(const trace& merged_trace, const traced_rank& rank) {
  const recorded_rank& record = rank.record;
  return {{"rank", record.rank},
          {"pid", record.pid},
          {"program", record.program},
          {"machine", merged_trace.machines[rank.machine].name},
          {"state", state_of(record)},
          {"failure", record.failure},
          {"calls", record.call_count},
          {"overwritten", record.call_count - std::min<std::uint64_t>(record.call_count, record.calls.size())},
          {"last_arrivals", rank.last_arrivals},
          {"others_waited_us", to_us(rank.others_waited_ns)},
          {"waited_us", to_us(rank.waited_ns)}};
}

json worst_of(const traced_communicator& communicator) {
  std::vector<const matched_call*> calls;
  for (const matched_call& collective : communicator.calls)
    if (collective.waited_ns > 0) calls.push_back(&collective);
  const std::size_t n = std::min(calls.size(), max_worst_calls);
  std::partial_sort(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(n), calls.end(),
                    [](const matched_call* a, const matched_call* b) { return a->waited_ns > b->waited_ns; });
  calls.resize(n);
  json worst_calls = json::array();
  for (const matched_call* collective : calls)
    worst_calls.push_back({{"call", text_of(*collective->rank_calls.front(), true)},
                           {"last", communicator.ranks[collective->last].record.rank},
                           {"delay_us", to_us(collective->delay_ns)},
                           {"others_waited_us", to_us(collective->waited_ns)}});
  return worst_calls;
}

json describe(const trace& merged_trace, const traced_communicator& each) {
  json ranks = json::array(), missing_ranks = json::array();
  std::set<int> recorded_ranks;
  for (const traced_rank& rank : each.ranks) {
    ranks.push_back(describe(merged_trace, rank));
    recorded_ranks.insert(rank.record.rank);
  }
  const recorded_rank& first = each.ranks.front().record;
  for (int rank = 0; rank < first.size; ++rank)
    if (!recorded_ranks.contains(rank)) missing_ranks.push_back(rank);
  return {{"communicator", fmt::format("{:016x}{:016x}", first.communicator[0], first.communicator[1])},
          {"size", first.size},
          {"state", each.state},
          {"sentence", each.sentence},
          {"matched", each.calls.size()},
          {"mismatched_calls", each.mismatched_calls},
          {"absent", missing_ranks},
          {"ranks", ranks},
          {"worst", worst_of(each)}};
}

}  // namespace

std::string summary_of(const trace& merged_trace) {
  json machines = json::array(), communicators = json::array();
  for (const traced_machine& each : merged_trace.machines)
    machines.push_back({{"name", each.name},
                        {"offset_us", to_us(each.offset_ns)},
                        {"uncertainty_us", to_us(each.uncertainty_ns)},
                        {"alignment_source", each.alignment_source}});
  for (const traced_communicator& each : merged_trace.communicators)
    communicators.push_back(describe(merged_trace, each));
  return json({{"machines", machines},
               {"communicators", communicators},
               {"skipped_files", merged_trace.skipped_files}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace isthmus::recorder
