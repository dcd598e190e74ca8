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
#include "recorder/trace_folder.hpp"
#include "recorder/format.hpp"

namespace isthmus::recorder {
namespace {

std::size_t machine_of(trace& of, const recorded_rank& record) {
  const auto same = [&](const traced_machine& each) { return each.boot == record.boot; };
  const auto machine = std::find_if(of.machines.begin(), of.machines.end(), same);
  if (by_token != of.machines.end()) return static_cast<std::size_t>(by_token - of.machines.begin());
  of.machines.push_back({record.machine, record.boot, 0, 0, "its own clock"});
  return of.machines.size() - 1;
}

// Copies of one rank's file, or files that only claim one communicator's name, would be taken for its ranks.
bool is_consistent(const traced_communicator& of, const recorded_rank& record) {
  return std::all_of(of.ranks.begin(), of.ranks.end(), [&](const traced_rank& each) {
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
      problem = "another trace has its rank, or another number of ranks";
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

// A rank's collectives, whose numbers rise.
std::vector<const recorded_call*> collectives_of(const recorded_rank& rank) {
  std::vector<const recorded_call*> calls;
  for (const recorded_call& call : rank.calls)
    if (!call.is_message()) calls.push_back(&call);
  return calls;
}

void compute_waits(traced_communicator& of, matched_call& matched) {
  const auto begin_of = [&](std::size_t i) { return static_cast<std::int64_t>(matched.rank_calls[i]->begin_ns); };
  std::int64_t first = begin_of(0);
  for (std::size_t i = 1; i < matched.rank_calls.size(); ++i) {
    first = std::min(first, begin_of(i));
    if (begin_of(i) > begin_of(matched.last)) matched.last = i;
  }
  matched.delay_ns = saturating_subtract(begin_of(matched.last), first);
  for (std::size_t i = 0; i < matched.rank_calls.size(); ++i) {
    const auto end_ns = static_cast<std::int64_t>(matched.rank_calls[i]->end_ns);
    const std::int64_t wait_end_ns = end_ns == 0 ? begin_of(matched.last) : std::min(end_ns, begin_of(matched.last));
    const std::int64_t waited = std::max<std::int64_t>(0, saturating_subtract(wait_end_ns, begin_of(i)));
    of.ranks[i].waited_ns = saturating_add(of.ranks[i].waited_ns, waited);
    matched.waited_ns = saturating_add(matched.waited_ns, waited);
  }
  ++of.ranks[matched.last].last_arrivals;
  of.ranks[matched.last].others_waited_ns = saturating_add(of.ranks[matched.last].others_waited_ns, matched.waited_ns);
}

// By number, among those that all ranks here have kept.
void match(traced_communicator& of) {
  if (of.ranks.size() < 2) return;
  std::vector<std::vector<const recorded_call*>> calls;
  for (const traced_rank& rank : of.ranks) calls.push_back(collectives_of(rank.record));
  std::vector<std::size_t> positions(calls.size(), 0);
  for (const recorded_call* call : calls.front()) {
    matched_call matched;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      while (positions[i] < calls[i].size() && calls[i][positions[i]]->number < call->number) ++positions[i];
      if (positions[i] < calls[i].size() && calls[i][positions[i]]->number == call->number)
        matched.rank_calls.push_back(calls[i][positions[i]]);
    }
    if (matched.rank_calls.size() < calls.size()) continue;
    const auto agrees = [&](const recorded_call* other) { return calls_match(*call, *other); };
    if (std::all_of(matched.rank_calls.begin(), matched.rank_calls.end(), agrees))
      of.calls.push_back(std::move(matched));
    else
      ++of.mismatched_calls;
  }
}

// ---- how it ended ------------------------------------------------------------------------------------------

std::string state_of(const traced_communicator& of) {
  std::string state = "ended";
  for (const traced_rank& rank : of.ranks) {
    if (rank.record.is_closed) continue;
    if (rank.record.is_elsewhere)
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

// What the doctor says, as of the end of the trace: of the latest calls, and with the ranks that left in order
// as they were then.
std::string sentence_of(const traced_communicator& of) {
  std::uint64_t end = 0;
  for (const traced_rank& rank : of.ranks) end = std::max(end, latest_time(rank.record));
  std::vector<recorded_rank> ranks;
  for (const traced_rank& rank : of.ranks) {
    const auto& calls = rank.record.calls;
    const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(calls.size(), ring_entries));
    recorded_rank record = rank.record;
    record.calls.assign(calls.end() - count, calls.end());
    for (recorded_call& call : record.calls) {
      call.begin_age_s = static_cast<double>(end - call.begin_ns) * 1e-9;
      if (call.end_ns != 0) call.end_age_s = static_cast<double>(end - call.end_ns) * 1e-9;
    }
    if (record.is_closed) record.process = process_state::alive;
    for (const traced_rank& other : of.ranks)
      record.pids[static_cast<std::size_t>(other.record.rank)] = other.record.pid;
    ranks.push_back(std::move(record));
  }
  return diagnose(ranks).sentence;
}

}  // namespace

trace read_traces(const std::string& folder) {
  trace of;
  of.communicators = read_all(folder, of.skipped_files);
  if (of.communicators.empty())
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("trace: {} holds no trace{}", folder,
                                 of.skipped_files.empty() ? "" : " that can be read: " + format_list(of.skipped_files)),
                     "ISTHMUS_TRACE=FOLDER in the environment of a job makes its ranks write some");
  std::sort(of.communicators.begin(), of.communicators.end(), [](const auto& a, const auto& b) {
    return a.ranks.front().record.created_s > b.ranks.front().record.created_s;
  });
  for (traced_communicator& each : of.communicators) {
    std::sort(each.ranks.begin(), each.ranks.end(),
              [](const auto& a, const auto& b) { return a.record.rank < b.record.rank; });
    for (traced_rank& rank : each.ranks) rank.machine = machine_of(of, rank.record);
    match(each);
  }
  align(of);
  for (traced_communicator& each : of.communicators) {
    for (matched_call& matched : each.calls) compute_waits(each, matched);
    each.state = state_of(each);
    if (each.state != "ended") each.sentence = sentence_of(each);
  }
  return of;
}

}  // namespace isthmus::recorder
