#include "recorder/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "recorder/clock.hpp"
#include "recorder/diagnosis.hpp"
#include "recorder/format.hpp"
#include "recorder/trace_folder.hpp"

namespace isthmus::recorder {
namespace {

std::size_t machine_of(trace& merged_trace, const recorded_rank& record) {
  const auto is_same_boot = [&](const traced_machine& each) { return each.boot == record.boot; };
  const auto machine = std::find_if(merged_trace.machines.begin(), merged_trace.machines.end(), is_same_boot);
  if (machine != merged_trace.machines.end())
    return static_cast<std::size_t>(machine - merged_trace.machines.begin());
  merged_trace.machines.push_back({record.machine, record.boot, 0, 0, "its own clock"});
  return merged_trace.machines.size() - 1;
}

// Rejects copies of a rank's file, and files of another communicator that has the same token.
bool is_consistent(const traced_communicator& communicator, const recorded_rank& record) {
  return std::all_of(communicator.ranks.begin(), communicator.ranks.end(), [&](const traced_rank& each) {
    return each.record.size == record.size && each.record.rank != record.rank;
  });
}

std::vector<traced_communicator> read_all(const std::string& folder, std::vector<std::string>& skipped_files) {
  std::map<token, traced_communicator> by_token;
  const std::uint64_t now = monotonic_ns();
  for (const std::string& path : list_traces(folder)) {
    std::string problem;
    auto record = read_file(path, now, &problem);
    if (record && !is_consistent(by_token[record->communicator], *record))
      problem = "another trace has the same rank or a different number of ranks";
    if (problem.empty())
      by_token[record->communicator].ranks.push_back({std::move(*record)});
    else
      skipped_files.push_back(fmt::format("{}: {}", path, problem));
  }
  std::vector<traced_communicator> all;
  for (auto& [name, each] : by_token) all.push_back(std::move(each));
  return all;
}

// ---- matching ----------------------------------------------------------------------------------------------

// Returns a rank's collectives in ascending order of their numbers.
std::vector<const recorded_call*> collectives_of(const recorded_rank& rank) {
  std::vector<const recorded_call*> calls;
  for (const recorded_call& call : rank.calls)
    if (!call.is_message()) calls.push_back(&call);
  return calls;
}

void compute_waits(traced_communicator& communicator, matched_call& collective) {
  const auto begin_ns = [&](std::size_t i) {
    return static_cast<std::int64_t>(collective.rank_calls[i]->begin_ns);
  };
  std::int64_t first = begin_ns(0);
  for (std::size_t i = 1; i < collective.rank_calls.size(); ++i) {
    first = std::min(first, begin_ns(i));
    if (begin_ns(i) > begin_ns(collective.last)) collective.last = i;
  }
  collective.delay_ns = saturating_subtract(begin_ns(collective.last), first);
  for (std::size_t i = 0; i < collective.rank_calls.size(); ++i) {
    const auto end_ns = static_cast<std::int64_t>(collective.rank_calls[i]->end_ns);
    const std::int64_t wait_end_ns =
        end_ns == 0 ? begin_ns(collective.last) : std::min(end_ns, begin_ns(collective.last));
    const std::int64_t wait_ns = std::max<std::int64_t>(0, saturating_subtract(wait_end_ns, begin_ns(i)));
    communicator.ranks[i].waited_ns = saturating_add(communicator.ranks[i].waited_ns, wait_ns);
    collective.waited_ns = saturating_add(collective.waited_ns, wait_ns);
  }
  ++communicator.ranks[collective.last].last_arrivals;
  communicator.ranks[collective.last].others_waited_ns =
      saturating_add(communicator.ranks[collective.last].others_waited_ns, collective.waited_ns);
}

// Matches collectives by number if all traces of the communicator contain them.
void match(traced_communicator& communicator) {
  if (communicator.ranks.size() < 2) return;
  std::vector<std::vector<const recorded_call*>> calls;
  for (const traced_rank& rank : communicator.ranks) calls.push_back(collectives_of(rank.record));
  std::vector<std::size_t> positions(calls.size(), 0);
  for (const recorded_call* call : calls.front()) {
    matched_call collective;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      while (positions[i] < calls[i].size() && calls[i][positions[i]]->number < call->number) ++positions[i];
      if (positions[i] < calls[i].size() && calls[i][positions[i]]->number == call->number)
        collective.rank_calls.push_back(calls[i][positions[i]]);
    }
    if (collective.rank_calls.size() < calls.size()) continue;
    const auto matches_call = [&](const recorded_call* other) { return calls_match(*call, *other); };
    if (std::all_of(collective.rank_calls.begin(), collective.rank_calls.end(), matches_call))
      communicator.calls.push_back(std::move(collective));
    else
      ++communicator.mismatched_calls;
  }
}

// ---- final state -------------------------------------------------------------------------------------------

std::string state_of(const traced_communicator& communicator) {
  std::string state = "ended";
  for (const traced_rank& rank : communicator.ranks) {
    if (rank.record.is_closed) continue;
    if (rank.record.is_remote)
      state = "unknown";
    else if (rank.record.process == process_state::exited)
      return "died";
    else if (state == "ended")
      state = "running";
  }
  return state;
}

std::uint64_t latest_time(const recorded_rank& rank) {
  std::uint64_t latest = rank.clocks.monotonic_ns;
  if (!rank.calls.empty()) latest = std::max({latest, rank.calls.back().begin_ns, rank.calls.back().end_ns});
  return latest;
}

// Diagnoses the state at the end of the trace from the latest calls. Ranks that have destroyed the communicator
// are treated as alive.
std::string sentence_of(const traced_communicator& communicator) {
  std::uint64_t end = 0;
  for (const traced_rank& rank : communicator.ranks) end = std::max(end, latest_time(rank.record));
  std::vector<recorded_rank> ranks;
  for (const traced_rank& rank : communicator.ranks) {
    const auto& calls = rank.record.calls;
    const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(calls.size(), ring_entries));
    recorded_rank record = rank.record;
    record.calls.assign(calls.end() - count, calls.end());
    for (recorded_call& call : record.calls) {
      call.begin_age_s = static_cast<double>(end - call.begin_ns) * 1e-9;
      if (call.end_ns != 0) call.end_age_s = static_cast<double>(end - call.end_ns) * 1e-9;
    }
    if (record.is_closed) record.process = process_state::alive;
    for (const traced_rank& other : communicator.ranks)
      record.pids[static_cast<std::size_t>(other.record.rank)] = other.record.pid;
    ranks.push_back(std::move(record));
  }
  return diagnose(ranks).sentence;
}

}  // namespace

trace read_traces(const std::string& folder) {
  trace merged_trace;
  merged_trace.communicators = read_all(folder, merged_trace.skipped_files);
  if (merged_trace.communicators.empty())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("trace: {} contains no trace{}", folder,
                                 merged_trace.skipped_files.empty()
                                     ? ""
                                     : " that can be read: " + format_list(merged_trace.skipped_files)),
                     "set ISTHMUS_TRACE=FOLDER in the environment of a job to record traces");
  std::sort(merged_trace.communicators.begin(), merged_trace.communicators.end(),
            [](const auto& a, const auto& b) {
              return a.ranks.front().record.created_s > b.ranks.front().record.created_s;
            });
  for (traced_communicator& each : merged_trace.communicators) {
    std::sort(each.ranks.begin(), each.ranks.end(),
              [](const auto& a, const auto& b) { return a.record.rank < b.record.rank; });
    for (traced_rank& rank : each.ranks) rank.machine = machine_of(merged_trace, rank.record);
    match(each);
  }
  align(merged_trace);
  for (traced_communicator& each : merged_trace.communicators) {
    for (matched_call& collective : each.calls) compute_waits(each, collective);
    each.state = state_of(each);
    if (each.state != "ended") each.sentence = sentence_of(each);
  }
  return merged_trace;
}

}  // namespace isthmus::recorder
