// How a failure becomes known to a communicator: its own, those of others, ranks that are lost.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

#include "core/communicator.hpp"
#include "core/local_ranks.hpp"
#include "recorder/format.hpp"

namespace isthmus {
namespace {

using std::chrono::steady_clock;

// How long a wait lasts before it looks for another process' failure, and the time between looks.
constexpr steady_clock::duration failure_poll_interval = std::chrono::milliseconds(100);
// A look that is slow, as the store's process is stopped, may take this part of the time.
constexpr int poll_pause_factor = 20;

// For who gives up at the same time to say so.
constexpr double min_report_wait_s = 0.02;
// Beyond the time for all answers: then a store is too slow to be asked after the rest.
constexpr double max_overdue_s = 0.3;

// How long a rank that timed out waits for others to do so: they began to wait at about the same time.
double report_wait_s(double timeout_s) {
  constexpr double max_wait_s = 1, timeout_share = 0.05;
  return std::clamp(timeout_share * timeout_s, min_report_wait_s, max_wait_s);
}

steady_clock::time_point deadline_after(double seconds) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_until(steady_clock::time_point deadline) {
  return std::chrono::duration<double>(deadline - steady_clock::now()).count();
}

bool is_among(int rank, std::span<const int> ranks) { return std::ranges::find(ranks, rank) != ranks.end(); }

const char* is_or_are(const std::vector<int>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

// "rank 7 is missing, and rank 6 of the same node is not heard of"
std::string missing_text(const std::vector<int>& missing, const std::vector<int>& node_peers) {
  using recorder::list_of;
  const std::string text = fmt::format("{} {} missing", list_of(missing), is_or_are(missing));
  return node_peers.empty()
             ? text
             : fmt::format("{}, and {} of the same node {} not heard of", text, list_of(node_peers), is_or_are(node_peers));
}

// Where nothing carries what ranks of other nodes say.
std::string unanswered_text(const std::vector<int>& ranks) {
  return fmt::format("no word from {}, and no way to ask whether {} for others", recorder::list_of(ranks),
                     ranks.size() == 1 ? "it waits" : "they wait");
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
  // Before the backends release anybody: who is released finds the cause.
  if (scope == notification_scope::all_ranks && m_ranks.process_size < m_ranks.size) m_control->publish_failure(failure);
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

// On one node causes are read from memory, and who sees that a process has ended needs nobody's word. From
// other nodes they come by the store. A part's is looked for by the whole.
double communicator::root_cause_wait_s() const noexcept {
  constexpr double memory_wait_s = 0.05, store_wait_s = 2;
  const bool is_cause_local = m_ranks.nodes == 1 || !m_parent.expired() || m_failure_board.find_lost();
  return is_cause_local ? memory_wait_s : std::min(store_wait_s, timeout_s());
}

// Where nobody has announced a cause, what followed from it is the first that is known: that a rank ended, say.
bool communicator::abort_on_backend_failure(failure_info& failure) noexcept {
  // Who comes late, and so fails at once, would clear itself while others still ask.
  const bool queries_peers = should_query_peers() && !(is_among(m_ranks.rank, failure.failed_ranks()) && has_arrived_late());
  if (queries_peers) m_control->mark_aborted();
  if (is_secondary_status(failure.status)) {
    wait_for_failures(root_cause_wait_s());
    if (is_aborted()) return false;
  }
  // Once for all ranks of a process. Others look for them as long as this rank has.
  if (queries_peers && !is_aborted() && !attribute_missing_ranks(failure)) wait_for_failures(2 * report_wait_s(timeout_s()));
  if (queries_peers && is_aborted()) return false;
  abort(failure);
  return true;
}

// On one node the flight recorder shows who waits; a part's failure is looked into by the whole.
bool communicator::should_query_peers() const noexcept {
  return m_ranks.nodes > 1 && !m_is_subcommunicator && m_ranks.process_size < m_ranks.size;
}

// A backend, or one of its parts, knows for whom it waits, and that may be a rank that waits, too, elsewhere:
// for another part, or in the next call. Such ranks give up at about the same time, and say so. Of whom nothing
// is heard is missing. False where all are heard of, so that another rank knows the cause.
bool communicator::attribute_missing_ranks(failure_info& failure) const noexcept {
  if (failure.failed_ranks().empty()) return true;
  try {
    std::vector<int> awaited_ranks(failure.failed_ranks().begin(), failure.failed_ranks().end());
    bool can_query = true;
    const auto deadline = deadline_after(report_wait_s(timeout_s()));
    std::vector<int> missing = find_unresponsive(awaited_ranks, peer_status::aborted, deadline, can_query);
    // Of a list that was full the rest is not known.
    if (missing.empty() && awaited_ranks.size() == failure_info::max_failed_ranks)
      missing = find_unresponsive(ranks_except(awaited_ranks), peer_status::aborted, deadline, can_query);
    failure.set_failed_ranks(missing);
    if (missing.empty()) return false;
    const std::string text =
        can_query ? missing_text(missing, unresponsive_node_peers(missing, failure.status)) : unanswered_text(missing);
    copy_text(failure.message, sizeof failure.message, fmt::format("{}: {}", text, failure.message));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory; the failure itself is told
  }
  return true;
}

// A whole machine is gone more often than one of its ranks. Ranks of this node are seen without a question.
// After a timeout the others have begun to wait at about the same time; when a rank ended they may be anywhere.
std::vector<int> communicator::unresponsive_node_peers(const std::vector<int>& missing, isthmus_status status) const {
  const auto node = [this](int rank) { return m_ranks.node_of[static_cast<std::size_t>(rank)]; };
  std::vector<int> node_peers;
  for (const int rank : ranks_except(missing))
    if (!is_on_this_node(rank) && std::ranges::any_of(missing, [&](int each) { return node(each) == node(rank); }))
      node_peers.push_back(rank);
  bool can_query = true;
  const peer_status expected = status == ISTHMUS_ERROR_TIMEOUT ? peer_status::aborted : peer_status::present;
  node_peers = find_unresponsive(node_peers, expected, deadline_after(min_report_wait_s), can_query);
  return can_query ? node_peers : std::vector<int>();
}

std::vector<int> communicator::ranks_except(const std::vector<int>& ranks) const {
  std::vector<int> others;
  for (int rank = 0; rank < m_ranks.size; ++rank)
    if (rank != m_ranks.rank && !is_among(rank, ranks)) others.push_back(rank);
  return others;
}

// Those of `ranks` without this word by then. Once one of another node can't be asked, `can_query` is false, and
// the rest of those counts as not heard of.
std::vector<int> communicator::find_unresponsive(const std::vector<int>& ranks, peer_status expected,
                                          steady_clock::time_point deadline, bool& can_query) const {
  std::vector<int> unresponsive;
  for (const int rank : ranks) {
    const double left = seconds_until(deadline);
    can_query = can_query && left > -max_overdue_s;
    const auto reported = can_query || is_on_this_node(rank) ? has_reported(rank, expected, std::max(0.0, left)) : std::nullopt;
    can_query = can_query && reported.has_value();
    if (!reported.value_or(false)) unresponsive.push_back(rank);
  }
  return unresponsive;
}

// A late rank's waits, if they have begun, have not lasted as long as those of the others.
bool communicator::has_arrived_late() const noexcept {
  if (m_waiting_operation.load(std::memory_order_relaxed) != m_recorder.call_count()) return true;
  const steady_clock::time_point wait_begin{steady_clock::duration(m_wait_begin.load(std::memory_order_relaxed))};
  return -seconds_until(wait_begin) < timeout_s() / 2;
}

// Whether it has given up, or does within this time, or is still there; nothing where it can't be asked. Who
// has ended won't.
std::optional<bool> communicator::has_reported(int rank, peer_status expected, double wait_s) const noexcept {
  if (rank == m_ranks.rank) return true;
  if (expected == peer_status::present) {
    const auto left = m_control->is_disconnected(rank);
    if (left.value_or(false)) return m_control->has_aborted(rank, 0);  // as programs end at their first error
    return left ? std::optional(true) : std::nullopt;
  }
  const process_state state = m_ranks.rank_processes[static_cast<std::size_t>(rank)].state();
  const auto reported = m_control->has_aborted(rank, state == process_state::alive ? wait_s : 0);
  return !reported && state != process_state::alive ? false : reported;
}

// The process of a rank that ended or is stopped is certain; of all else the backend knows more. But where it
// timed out for others than those who have not come, these wait themselves: on one node all are seen.
void communicator::attribute_diagnosis(failure_info& failure, const recorder::diagnosis& findings) const {
  using recorder::diagnosis_kind;
  const bool is_certain = findings.kind == diagnosis_kind::exited || findings.kind == diagnosis_kind::stopped;
  const bool is_likely = findings.kind == diagnosis_kind::missing || findings.kind == diagnosis_kind::destroyed;
  if (!is_certain && !is_likely) return;
  failure_info attributed;
  attribute_failure(attributed, findings.responsible_ranks);
  const bool blames_waiting_ranks =
      failure.status == ISTHMUS_ERROR_TIMEOUT && m_ranks.nodes == 1 &&
      std::ranges::find_first_of(failure.failed_ranks(), attributed.failed_ranks()) == failure.failed_ranks().end();
  if (is_certain || failure.failed_ranks().empty() || blames_waiting_ranks) failure.set_failed_ranks(attributed.failed_ranks());
}

void communicator::attribute_failure(failure_info& failure, std::span<const int> ranks) const {
  std::vector<int> failed_ranks;
  for (const int rank : ranks)
    if (rank >= 0 && rank < m_ranks.size) failed_ranks.push_back(rank);  // what a plug-in says
  failure.set_failed_ranks(m_is_subcommunicator ? to_parent_ranks(failed_ranks) : failed_ranks);
}

std::vector<int> communicator::to_parent_ranks(std::span<const int> ranks) const {
  std::vector<int> parent_ranks;
  for (const int rank : ranks) parent_ranks.push_back(m_ranks.parent_rank_of[static_cast<std::size_t>(rank)]);
  return parent_ranks;
}

// What a backend made the failure of this communicator itself (isthmus_backend_context::abort_communicator) it returns,
// too.
std::optional<failure_info> communicator::find_earlier_report(const failure_info& failure) const {
  const std::lock_guard lock(m_failure_mutex);
  if (!m_failure || is_secondary_status(failure.status) || m_failure->status != failure.status ||
      m_failure->rank != failure.rank || std::strcmp(m_failure->backend, failure.backend) != 0)
    return std::nullopt;
  failure_info earlier = *m_failure;
  earlier.collective = failure.collective;
  return earlier;
}

// Takes over what a rank of another process has announced.
void communicator::wait_for_failures(double wait_s,
                        void (*on_failure)(const communicator& rank, const failure_info& cause)) noexcept {
  if (is_aborted() || m_ranks.process_size == m_ranks.size) return;
  if (const auto cause = m_control->wait_for_failure(wait_s)) {
    if (on_failure != nullptr) on_failure(*this, *cause);
    return abort(*cause, notification_scope::this_process);
  }
  // What waits on a device sees no process. On the host whoever waits knows best whether it needs that rank.
  if (m_ranks.device.platform != ISTHMUS_PLATFORM_HOST)
    if (const auto lost = m_failure_board.find_lost()) abort_on_lost_peer(*lost);
}

void communicator::abort_on_lost_peer(int lost) noexcept {
  failure_info failure =
      make_error(
          ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
          fmt::format("rank {} exited before it had destroyed the communicator of rank {}", lost, m_ranks.rank),
          "look for a crash or an early exit of that rank")
          .info();
  attribute_failure(failure, std::array{lost});
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
  // Who waits in a part waits for all: its ranks may have heard of a failure that those of the part can't.
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
  // One of several waiting threads looks.
  if (begin.time_since_epoch().count() < next_poll ||
      !m_next_poll.compare_exchange_strong(next_poll, std::numeric_limits<std::int64_t>::max()))
    return;
  wait_for_failures(0);
  const auto end = steady_clock::now();
  const auto pause = std::max(failure_poll_interval, (end - begin) * poll_pause_factor);
  m_next_poll.store((end + pause).time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace isthmus
