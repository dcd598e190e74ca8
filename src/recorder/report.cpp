#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "recorder/diagnosis.hpp"

namespace isthmus::recorder {
namespace {

using json = nlohmann::json;

constexpr std::size_t max_reported_calls = 16;  // per rank; the latest ones

using rank_records = std::vector<recorded_rank>;

struct job {
  std::set<process_identity> processes;
  std::vector<rank_records> communicators;
};

std::string name_of_token(const token& value) { return fmt::format("{:016x}{:016x}", value[0], value[1]); }

const char* name_of_process(const recorded_rank& rank) {
  if (rank.is_remote) return "unknown";
  switch (rank.process) {
    case process_state::alive: return "alive";
    case process_state::stopped: return "stopped";
    case process_state::exited: return "exited";
  }
  return "unknown";
}

const char* name_of_state(const recorded_call& call) {
  if (call.state == entry_state::failed) return "failed";
  if (call.state == entry_state::inside) return "inside";
  return call.has_ended ? "ended" : "enqueued";
}

json describe(const recorded_rank& rank) {
  json calls = json::array();
  const std::size_t first = rank.calls.size() - std::min(rank.calls.size(), max_reported_calls);
  for (std::size_t i = first; i < rank.calls.size(); ++i) {
    const recorded_call& call = rank.calls[i];
    json document = {{"call", text_of(call, true)},
                     {"state", name_of_state(call)},
                     {"in_place", call.signature.in_place},
                     {"began_s_ago", call.begin_age_s}};
    if (call.state != entry_state::inside) document["ended_s_ago"] = call.end_age_s;
    calls.push_back(std::move(document));
  }
  return {{"rank", rank.rank},       {"pid", rank.pid},         {"process", name_of_process(rank)},
          {"program", rank.program}, {"failure", rank.failure}, {"collectives", rank.collectives()},
          {"calls", calls}};
}

json describe(const rank_records& ranks) {
  const diagnosis result = diagnose(ranks);
  json each = json::array();
  for (const recorded_rank& rank : ranks) each.push_back(describe(rank));
  return {{"communicator", name_of_token(ranks.front().communicator)},
          {"size", ranks.front().size},
          {"timeout_s", ranks.front().timeout_s},
          {"diagnosis", name_of(result.kind)},
          {"responsible_ranks", result.responsible_ranks},
          {"waiting_s", result.waiting_s},
          {"sentence", result.sentence},
          {"ranks", each}};
}

// Groups communicators into jobs: two communicators that share a process belong to the same job.
std::vector<job> group_into_jobs(std::map<token, rank_records> communicators) {
  std::vector<job> jobs;
  for (auto& [name, ranks] : communicators) {
    job merged_job;
    for (const recorded_rank& rank : ranks) merged_job.processes.insert(rank.identity());
    merged_job.communicators.push_back(std::move(ranks));
    for (auto other = jobs.begin(); other != jobs.end();) {
      const auto is_shared = [&](const process_identity& each) { return merged_job.processes.contains(each); };
      if (std::ranges::any_of(other->processes, is_shared)) {
        merged_job.processes.merge(other->processes);
        for (auto& each : other->communicators) merged_job.communicators.push_back(std::move(each));
        other = jobs.erase(other);
      } else {
        ++other;
      }
    }
    jobs.push_back(std::move(merged_job));
  }
  return jobs;
}

// The newest process with this pid of each machine that has one. Older jobs had other processes with the same pid.
std::set<process_identity> find_processes(const std::vector<job>& jobs, std::int64_t pid) {
  std::set<process_identity> all, newest;
  for (const job& each : jobs)
    for (const process_identity& process : each.processes)
      if (process.pid == pid) all.insert(process);
  for (auto each = all.begin(); each != all.end(); ++each)
    if (const auto next = std::next(each); next == all.end() || !next->has_pid_of(*each)) newest.insert(*each);
  return newest;
}

double creation_age_s(const rank_records& ranks) {
  double age = 0;
  for (const recorded_rank& rank : ranks) age = std::max(age, rank.created_s);
  return age;
}

// Rejects copies of a rank's file, and files of another communicator that has the same token.
bool is_consistent(const rank_records& ranks, const recorded_rank& record) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const recorded_rank& each) {
    return each.size == record.size && each.rank != record.rank;
  });
}

std::map<token, rank_records> read_all(const std::vector<std::string>& paths) {
  std::map<token, rank_records> communicators;
  const std::uint64_t now = monotonic_ns();
  for (const std::string& path : paths)
    if (auto record = read_file(path, now))
      if (auto& ranks = communicators[record->communicator]; is_consistent(ranks, *record))
        ranks.push_back(std::move(*record));
  for (auto& [name, ranks] : communicators)
    std::sort(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  return communicators;
}

// Replaces the ages of calls by their ages at the end of the trace. Uses the real-time clock because the ranks
// of a trace can come from several machines. Keeps as many calls as a flight recorder. Ranks that have
// destroyed the communicator are treated as alive.
void rewind_to_end(rank_records& ranks) {
  std::map<std::string, std::uint64_t> realtime_offset;  // by boot: processes of one boot share a clock
  std::uint64_t end = 0;
  const auto realtime_of = [&](const recorded_rank& rank, std::uint64_t ns) {
    return ns + realtime_offset.try_emplace(rank.boot, rank.clocks.realtime_ns - rank.clocks.monotonic_ns)
                    .first->second;
  };
  for (recorded_rank& rank : ranks) {
    if (rank.calls.size() > ring_entries)
      rank.calls.erase(rank.calls.begin(), rank.calls.end() - static_cast<std::ptrdiff_t>(ring_entries));
    if (rank.is_closed) rank.process = process_state::alive;
    end = std::max(end, realtime_of(rank, rank.clocks.monotonic_ns));
    if (!rank.calls.empty())
      end = std::max(end, realtime_of(rank, std::max(rank.calls.back().begin_ns, rank.calls.back().end_ns)));
  }
  for (recorded_rank& rank : ranks) {
    for (recorded_call& call : rank.calls) {
      call.begin_age_s = static_cast<double>(end - realtime_of(rank, call.begin_ns)) * 1e-9;
      if (call.end_ns != 0) call.end_age_s = static_cast<double>(end - realtime_of(rank, call.end_ns)) * 1e-9;
    }
    for (const recorded_rank& other : ranks) rank.pids[static_cast<std::size_t>(other.rank)] = other.pid;
  }
}

}  // namespace

std::string report(std::int64_t pid, const std::string& name_prefix, const std::string& trace_folder) {
  auto communicators = read_all(trace_folder.empty() ? list_files() : list_traces(trace_folder));
  if (!trace_folder.empty())
    for (auto& [name, ranks] : communicators) rewind_to_end(ranks);
  json document = json::array();
  std::vector<job> jobs = group_into_jobs(std::move(communicators));
  const std::set<process_identity> newest_processes = find_processes(jobs, pid);
  for (job& each : jobs) {
    const bool has_process = std::ranges::any_of(
        newest_processes, [&](const auto& process) { return each.processes.contains(process); });
    std::sort(each.communicators.begin(), each.communicators.end(),
              [](auto& a, auto& b) { return creation_age_s(a) > creation_age_s(b); });
    const std::string name = name_of_token(each.communicators.front().front().communicator).substr(0, 8);
    if ((pid != 0 && !has_process) || !name.starts_with(name_prefix)) continue;
    std::set<std::int64_t> pids;
    for (const process_identity& process : each.processes) pids.insert(process.pid);
    json list = json::array();
    for (const rank_records& ranks : each.communicators) list.push_back(describe(ranks));
    document.push_back({{"job", name}, {"pids", pids}, {"communicators", list}});
  }
  return json({{"jobs", document}}).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace isthmus::recorder
