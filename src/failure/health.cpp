#include "failure/health.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "failure/wait.hpp"

namespace isthmus {
namespace {

const char* state_suffix(process_state state) {
  switch (state) {
    case process_state::alive: return "";
    case process_state::stopped: return " (its process is stopped)";
    case process_state::exited: return " (its process has exited)";
  }
  return "";
}

}  // namespace

process_state rank_process::state() const noexcept {
  if (is_closing(health_record::exiting)) return process_state::exited;
  return pid == 0 ? process_state::alive : read_process_state(pid, start);
}

bool rank_process::has_exited() const noexcept {
  return is_closing(health_record::exiting) || (pid != 0 && has_process_exited(pid, start));
}

void health_record::set_failure(const failure_info& first_failure, std::uint32_t new_state) noexcept {
  std::uint32_t current = healthy;
  if (!state.compare_exchange_strong(current, unfinished)) return;
  std::memcpy(failure_bytes.data(), &first_failure, sizeof first_failure);
  state.store(new_state, std::memory_order_release);
}

failure_info health_record::failure() const noexcept {
  failure_info result;
  std::memcpy(static_cast<void*>(&result), failure_bytes.data(), sizeof result);
  return result;
}

process_failure find_process_failure(std::span<const process_report> reports) {
  process_failure lost{process_state::exited, false, {}}, stopped{process_state::stopped, false, {}};
  process_failure exited{process_state::exited, true, {}};
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].state == process_state::stopped) stopped.processes.push_back(i);
    if (reports[i].state != process_state::exited) continue;
    exited.processes.push_back(i);
    if (!reports[i].may_have_failed) lost.processes.push_back(i);
  }
  for (const process_failure* const each : {&lost, &stopped, &exited})
    if (!each->processes.empty()) return *each;
  return {};
}

bool peer_monitor::has_all_records() const noexcept {
  return std::ranges::all_of(m_processes, [](const auto& each) { return each.record != nullptr; });
}

bool peer_monitor::publish(const failure_info& failure) noexcept {
  health_record* const record = process(m_rank).record;
  if (record != nullptr) record->set_failure(failure, health_record::published);
  return record != nullptr;
}

failure_info peer_monitor::make_failure_info(const error& failure) const {
  failure_info info = failure.info();
  info.rank = m_rank;
  return info;
}

std::optional<failure_info> peer_monitor::try_read_failure() const noexcept {
  std::optional<failure_info> secondary_failure;
  for (const rank_process& each : m_processes) {
    if (each.record == nullptr ||
        each.record->state.load(std::memory_order_acquire) != health_record::published)
      continue;
    const failure_info failure = each.record->failure();
    if (!is_secondary_status(failure.status)) return failure;
    if (!secondary_failure) secondary_failure = failure;
  }
  return secondary_failure;
}

std::optional<failure_info> peer_monitor::read_failure(double wait_s) const noexcept {
  std::optional<failure_info> failure;
  const auto has_failure = [&] { return (failure = try_read_failure()).has_value(); };
  poll_until(has_failure, deadline_after(wait_s), std::chrono::milliseconds(1));
  return failure;
}

void peer_monitor::mark_aborted() noexcept {
  if (health_record* const record = process(m_rank).record)
    record->has_aborted.store(1, std::memory_order_release);
}

std::optional<bool> peer_monitor::has_aborted(int rank, double wait_s) const noexcept {
  const health_record* const record = process(rank).record;
  if (record == nullptr) return std::nullopt;
  return poll_until([&] { return record->has_aborted.load(std::memory_order_acquire) != 0; },
                    deadline_after(wait_s), std::chrono::milliseconds(1));
}

void peer_monitor::throw_if_peer_failed() const {
  if (const auto failure = read_failure()) throw remote_failure(*failure);
}

std::optional<int> peer_monitor::find_exited(int first) const noexcept {
  for (int rank = first; rank < static_cast<int>(m_processes.size()); ++rank)
    if (rank != m_rank && process(rank).has_exited()) return rank;
  return std::nullopt;
}

// A rank sets its flag before it exits, so a flag that is read after the exit was detected is final. Without its
// record, it is unknown whether the rank has destroyed its communicator.
std::optional<int> peer_monitor::find_lost() const noexcept {
  auto exited_rank = find_exited();
  while (exited_rank &&
         (process(*exited_rank).record == nullptr || process(*exited_rank).has_destroyed_communicator()))
    exited_rank = find_exited(*exited_rank + 1);
  return exited_rank;
}

error peer_monitor::exited_error(int rank) const {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                    fmt::format("rank {} exited, or destroyed its communicator, while rank {} waited for it to "
                                "create, split or allocate",
                                rank, m_rank),
                    "look for a crash or an early exit of that rank")
      .with_failed_ranks(std::array{rank});
}

process_failure peer_monitor::find_process_failure() const {
  std::vector<process_report> reports;
  for (const rank_process& each : m_processes)
    reports.push_back({each.state(), each.record == nullptr || each.record->has_failed() ||
                                         each.has_destroyed_communicator()});
  return isthmus::find_process_failure(reports);
}

std::string peer_monitor::describe(const std::vector<int>& missing_ranks) const {
  const process_failure blocking = find_process_failure();
  std::string text, others;
  for (int rank = 0; rank < static_cast<int>(m_processes.size()); ++rank) {
    const bool is_blocking = std::ranges::binary_search(blocking.processes, static_cast<std::size_t>(rank));
    const char* const suffix = is_blocking ? state_suffix(blocking.state) : "";
    if (rank == m_rank) continue;
    if (std::ranges::find(missing_ranks, rank) != missing_ranks.end())
      text += fmt::format("{}{}{}", text.empty() ? "" : ", ", rank, suffix);
    else if (is_blocking)
      others += fmt::format("{}rank {}{}", text.empty() && others.empty() ? "" : "; peers may wait for ", rank,
                            suffix);
  }
  return text + others;
}

error remote_failure(const failure_info& failure) {
  // If a peer timed out, this rank would time out too, so it reports the same status.
  const bool is_late = failure.status == ISTHMUS_ERROR_TIMEOUT;
  // Only the rank itself caused a failure in which it waited for no other rank.
  const bool is_local = failure.failed_ranks().empty() && !is_late && !is_secondary_status(failure.status) &&
                        failure.status != ISTHMUS_ERROR_MISMATCH && failure.rank >= 0;
  const std::array own_rank{failure.rank};
  return make_error(is_late ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                    fmt::format("rank {} failed: {}", failure.rank, failure.message), failure.hint,
                    failure.native_code)
      .with_failed_ranks(is_local ? std::span<const int>(own_rank) : failure.failed_ranks());
}

}  // namespace isthmus
