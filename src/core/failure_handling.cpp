// Failure detection of a communicator: its own failures, failures of other ranks, and lost ranks.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

#include "core/communicator.hpp"
#include "core/local_ranks.hpp"
#include "failure/wait.hpp"
#include "recorder/format.hpp"

namespace isthmus {
namespace {

using std::chrono::steady_clock;

// Delay before a wait polls for failures of other processes, and the interval between polls.
constexpr steady_clock::duration failure_poll_interval = std::chrono::milliseconds(100);
// Minimum pause between polls, as a multiple of the poll's duration. A poll is slow if the
// store's process is stopped.
constexpr int poll_pause_factor = 20;

// Minimum time to wait for the reports of ranks that abort at the same time.
constexpr double min_report_wait_s = 0.02;
// If all queries together exceed their deadline by this much, the store is too slow for the remaining queries.
constexpr double max_overdue_s = 0.3;

// Returns how long a rank that timed out waits for reports of its peers, which started to wait at about
// the same time.
double report_wait_s(double timeout_s) {
  constexpr double max_wait_s = 1, timeout_share = 0.05;
  return std::clamp(timeout_share * timeout_s, min_report_wait_s, max_wait_s);
}

double seconds_until(steady_clock::time_point deadline) {
  return std::chrono::duration<double>(deadline - steady_clock::now()).count();
}

bool is_among(int rank, std::span<const int> ranks) { return std::ranges::find(ranks, rank) != ranks.end(); }

const char* is_or_are(const std::vector<int>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

// Formats "rank 7 is missing, and rank 6 of the same node does not respond".
std::string missing_text(const std::vector<int>& missing_ranks, const std::vector<int>& node_peers) {
  using recorder::list_of;
  const std::string text = fmt::format("{} {} missing", list_of(missing_ranks), is_or_are(missing_ranks));
  return node_peers.empty() ? text
                            : fmt::format("{}, and {} of the same node {} not respond", text,
                                          list_of(node_peers), node_peers.size() == 1 ? "does" : "do");
}

// Used for bootstraps that cannot transport reports from ranks of other nodes.
std::string unanswered_text(const std::vector<int>& ranks) {
  return fmt::format("{} did not report, and the bootstrap cannot query whether {} also waiting",
                     recorder::list_of(ranks), ranks.size() == 1 ? "it is" : "they are");
}

}  // namespace

void communicator::abort_this_rank(const failure_info& failure, notification_scope scope) noexcept {
  {
    const std::lock_guard lock(m_failure_mutex);
    if (m_failure) return;
    m_failure = failure;
    m_recorder.fail(failure.message);
  }
  if (should_query_peers()) m_control->mark_aborted();
  // Publish the failure before the backends release blocked ranks, so that a released rank
  // finds the root cause.
  if (scope == notification_scope::all_ranks && m_ranks.process_size < m_ranks.size)
    m_control->publish_failure(failure);
  m_is_aborted.store(true, std::memory_order_release);
  m_control->cancel();
  const std::lock_guard lock(m_abort_mutex);
  if (m_is_closed) return;
  for (const auto& backend : m_backends) backend->abort();
}

void communicator::abort(const failure_info& failure, notification_scope scope) noexcept {
  abort_this_rank(failure, scope);
  for (const auto& local_rank : other_local_ranks(m_ranks.token, this))
    local_rank->abort_this_rank(failure, notification_scope::this_process);
}

// On one node, causes are read from shared memory, and the exit of a process is visible without a report.
// Causes from other nodes arrive through the store. For a subcommunicator, the parent looks for the cause.
double communicator::root_cause_wait_s() const noexcept {
  constexpr double memory_wait_s = 0.05, store_wait_s = 2;
  const bool is_cause_local = m_ranks.nodes == 1 || !m_parent.expired() || m_failure_board.find_lost();
  return is_cause_local ? memory_wait_s : std::min(store_wait_s, timeout_s());
}

// If no rank has published a root cause, reports the first known consequence, for example an exited rank.
bool communicator::abort_on_backend_failure(failure_info& failure) noexcept {
  // A late rank that fails immediately must not mark itself aborted, because peers that are still querying would
  // no longer attribute the failure to it.
  const bool queries_peers =
      should_query_peers() && !(is_among(m_ranks.rank, failure.failed_ranks()) && has_arrived_late());
  if (queries_peers) m_control->mark_aborted();
  if (is_secondary_status(failure.status)) {
    wait_for_failures(root_cause_wait_s());
    if (is_aborted()) return false;
  }
  // Query once for all ranks of a process. The queries of the other processes take equally long.
  if (queries_peers && !is_aborted() && !attribute_missing_ranks(failure))
    wait_for_failures(2 * report_wait_s(timeout_s()));
  if (queries_peers && is_aborted()) return false;
  abort(failure);
  return true;
}

// On a single node, the flight recorder shows which ranks wait. For a subcommunicator, the
// parent runs the query.
bool communicator::should_query_peers() const noexcept {
  return m_ranks.nodes > 1 && !m_is_subcommunicator && m_ranks.process_size < m_ranks.size;
}

// A backend knows which ranks it waits for, but these ranks may be blocked elsewhere, in another
// subcommunicator or in the next call. Blocked ranks time out and report at about the same time, so a rank
// that does not report is missing. Returns false if all ranks reported, because another rank then knows
// the root cause.
bool communicator::attribute_missing_ranks(failure_info& failure) const noexcept {
  if (failure.failed_ranks().empty()) return true;
  try {
    std::vector<int> awaited_ranks(failure.failed_ranks().begin(), failure.failed_ranks().end());
    bool can_query = true;
    const auto deadline = deadline_after(report_wait_s(timeout_s()));
    std::vector<int> missing_ranks =
        find_unresponsive(awaited_ranks, peer_status::aborted, deadline, can_query);
    // A full list may be truncated, so query all other ranks.
    if (missing_ranks.empty() && awaited_ranks.size() == failure_info::max_failed_ranks)
      missing_ranks = find_unresponsive(ranks_except(awaited_ranks), peer_status::aborted, deadline, can_query);
    failure.set_failed_ranks(missing_ranks);
    if (missing_ranks.empty()) return false;
    const std::string text =
        can_query ? missing_text(missing_ranks, unresponsive_node_peers(missing_ranks, failure.status))
                  : unanswered_text(missing_ranks);
    copy_text(failure.message, sizeof failure.message, fmt::format("{}: {}", text, failure.message));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory: keep the message without the missing ranks
  }
  return true;
}

// The loss of a whole node is more likely than that of a single rank. Ranks of this node are visible
// without a query. After a timeout, peers should have aborted as well, because they started to wait at
// about the same time. After the exit of a rank, peers may be anywhere in the program, so it suffices that
// they are still connected.
std::vector<int> communicator::unresponsive_node_peers(const std::vector<int>& missing_ranks,
                                                       isthmus_status status) const {
  const auto node = [this](int rank) { return m_ranks.node_of[static_cast<std::size_t>(rank)]; };
  std::vector<int> node_peers;
  for (const int rank : ranks_except(missing_ranks))
    if (!is_on_this_node(rank) &&
        std::ranges::any_of(missing_ranks, [&](int each) { return node(each) == node(rank); }))
      node_peers.push_back(rank);
  bool can_query = true;
  const peer_status expected_status =
      status == ISTHMUS_ERROR_TIMEOUT ? peer_status::aborted : peer_status::present;
  node_peers = find_unresponsive(node_peers, expected_status, deadline_after(min_report_wait_s), can_query);
  return can_query ? node_peers : std::vector<int>();
}

std::vector<int> communicator::ranks_except(const std::vector<int>& ranks) const {
  std::vector<int> other_ranks;
  for (int rank = 0; rank < m_ranks.size; ++rank)
    if (rank != m_ranks.rank && !is_among(rank, ranks)) other_ranks.push_back(rank);
  return other_ranks;
}

// Returns the ranks of `ranks` that do not report `expected_status` before the deadline. As soon as a rank
// of another node cannot be queried, sets `can_query` to false and counts all remaining ranks of other
// nodes as unresponsive.
std::vector<int> communicator::find_unresponsive(const std::vector<int>& ranks, peer_status expected_status,
                                                 steady_clock::time_point deadline, bool& can_query) const {
  std::vector<int> unresponsive_ranks;
  for (const int rank : ranks) {
    const double remaining_s = seconds_until(deadline);
    can_query = can_query && remaining_s > -max_overdue_s;
    const auto has_rank_reported = can_query || is_on_this_node(rank)
                                       ? has_reported(rank, expected_status, std::max(0.0, remaining_s))
                                       : std::nullopt;
    can_query = can_query && has_rank_reported.has_value();
    if (!has_rank_reported.value_or(false)) unresponsive_ranks.push_back(rank);
  }
  return unresponsive_ranks;
}

// Returns true if this rank has not started to wait or has waited less than half of the timeout. Its peers have
// then waited longer.
bool communicator::has_arrived_late() const noexcept {
  if (m_waiting_operation.load(std::memory_order_relaxed) != m_recorder.call_count()) return true;
  const steady_clock::time_point wait_begin{
      steady_clock::duration(m_wait_begin.load(std::memory_order_relaxed))};
  return -seconds_until(wait_begin) < timeout_s() / 2;
}

// Returns true if the rank reports `expected_status` within `wait_s`, and nullopt if it cannot be queried. Does
// not wait for an exited process.
std::optional<bool> communicator::has_reported(int rank, peer_status expected_status,
                                               double wait_s) const noexcept {
  if (rank == m_ranks.rank) return true;
  if (expected_status == peer_status::present) {
    const auto has_disconnected = m_control->is_disconnected(rank);
    if (has_disconnected.value_or(false))
      return m_control->has_aborted(rank, 0);  // programs exit at their first error
    return has_disconnected ? std::optional(true) : std::nullopt;
  }
  const process_state state = m_ranks.rank_processes[static_cast<std::size_t>(rank)].state();
  const auto has_rank_reported = m_control->has_aborted(rank, state == process_state::alive ? wait_s : 0);
  return !has_rank_reported && state != process_state::alive ? false : has_rank_reported;
}

// If a process has exited or is stopped, the diagnosis is certain. Otherwise, the backend's own list is more
// accurate. Exception: on a single node, where all ranks are visible, a backend may have timed out on ranks
// that are not missing but blocked themselves.
void communicator::attribute_diagnosis(failure_info& failure, const recorder::diagnosis& findings) const {
  using recorder::diagnosis_kind;
  const bool is_certain = findings.kind == diagnosis_kind::exited || findings.kind == diagnosis_kind::stopped;
  const bool is_likely = findings.kind == diagnosis_kind::missing || findings.kind == diagnosis_kind::destroyed;
  if (!is_certain && !is_likely) return;
  failure_info diagnosed_failure;
  attribute_failure(diagnosed_failure, findings.responsible_ranks);
  const bool names_waiting_ranks =
      failure.status == ISTHMUS_ERROR_TIMEOUT && m_ranks.nodes == 1 &&
      std::ranges::find_first_of(failure.failed_ranks(), diagnosed_failure.failed_ranks()) ==
          failure.failed_ranks().end();
  if (is_certain || failure.failed_ranks().empty() || names_waiting_ranks)
    failure.set_failed_ranks(diagnosed_failure.failed_ranks());
}

void communicator::attribute_failure(failure_info& failure, std::span<const int> ranks) const {
  std::vector<int> failed_ranks;
  for (const int rank : ranks)
    if (rank >= 0 && rank < m_ranks.size) failed_ranks.push_back(rank);  // unverified input of a plug-in
  failure.set_failed_ranks(m_is_subcommunicator ? to_parent_ranks(failed_ranks) : failed_ranks);
}

std::vector<int> communicator::to_parent_ranks(std::span<const int> ranks) const {
  std::vector<int> parent_ranks;
  for (const int rank : ranks) parent_ranks.push_back(m_ranks.parent_rank_of[static_cast<std::size_t>(rank)]);
  return parent_ranks;
}

// Finds the failure with which a backend has already aborted the communicator
// (isthmus_backend_context::abort_communicator). The backend then returns the same failure, and it must not be
// reported as a consequence of itself.
std::optional<failure_info> communicator::find_earlier_report(const failure_info& failure) const {
  const std::lock_guard lock(m_failure_mutex);
  if (!m_failure || is_secondary_status(failure.status) || m_failure->status != failure.status ||
      m_failure->rank != failure.rank || std::strcmp(m_failure->backend, failure.backend) != 0)
    return std::nullopt;
  failure_info earlier_failure = *m_failure;
  earlier_failure.collective = failure.collective;
  return earlier_failure;
}

// Takes over the failure that a rank of another process has published.
void communicator::wait_for_failures(double wait_s, void (*on_failure)(const communicator& rank,
                                                                       const failure_info& cause)) noexcept {
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->wait_for_failure(wait_s)) {
    if (on_failure != nullptr) on_failure(*this, *cause);
    return abort(*cause, notification_scope::this_process);
  }
  // A wait on a device cannot detect the exit of a process. On the host platform, the wait itself decides
  // whether it needs the lost rank.
  if (m_ranks.device.platform != ISTHMUS_PLATFORM_HOST)
    if (const auto lost_rank = m_failure_board.find_lost()) abort_on_lost_peer(*lost_rank);
}

void communicator::abort_on_lost_peer(int lost_rank) noexcept {
  failure_info failure =
      make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                 fmt::format("rank {} exited before it destroyed its communicator, which rank {} still uses",
                             lost_rank, m_ranks.rank),
                 "check that rank for a crash or an early exit")
          .info();
  attribute_failure(failure, std::array{lost_rank});
  failure = with_diagnosis(failure);
  failure.rank = m_ranks.rank;
  abort(failure);
}

void communicator::poll_failure_board() noexcept {
  if (const auto parent = m_parent.lock(); parent && !parent->m_is_closed) parent->poll_failure_board();
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->poll_local_failure()) abort(*cause, notification_scope::this_process);
}

void communicator::poll_failures() noexcept {
  // A wait in a subcommunicator blocks the parent's call, and the parent may know of a
  // failure outside the subcommunicator.
  if (const auto parent = m_parent.lock(); parent && !parent->m_is_closed) parent->poll_failures();
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  const auto begin = steady_clock::now();
  const std::uint64_t operation = m_recorder.call_count();
  std::int64_t next_poll = m_next_poll.load(std::memory_order_relaxed);
  if (m_waiting_operation.exchange(operation, std::memory_order_relaxed) != operation) {
    m_wait_begin.store(begin.time_since_epoch().count(), std::memory_order_relaxed);
    m_next_poll.store((begin + failure_poll_interval).time_since_epoch().count(), std::memory_order_relaxed);
    return;
  }
  // Only one of several waiting threads polls.
  if (begin.time_since_epoch().count() < next_poll ||
      !m_next_poll.compare_exchange_strong(next_poll, std::numeric_limits<std::int64_t>::max()))
    return;
  wait_for_failures(0);
  const auto end = steady_clock::now();
  const auto pause = std::max(failure_poll_interval, (end - begin) * poll_pause_factor);
  m_next_poll.store((end + pause).time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace isthmus
