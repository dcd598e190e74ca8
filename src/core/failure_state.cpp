#include "core/failure_state.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus {
namespace {

using std::chrono::steady_clock;

// Delay before a wait polls for failures of other processes, and the interval between polls.
constexpr steady_clock::duration failure_poll_interval = std::chrono::milliseconds(100);
// Minimum pause between polls, as a multiple of the poll's duration. A poll is slow if the
// store's process is stopped.
constexpr int poll_pause_factor = 20;

// The watchdog waits longer than the timeout, so that backends with their own timeouts report first. Their
// errors contain more details.
constexpr double watch_grace_factor = 1.05, watch_grace_s = 0.5;

// The open ranks of this process. Through it, a failed rank notifies the other ranks of its process.
struct local_rank {
  std::array<std::uint64_t, 2> token;  // of its communicator
  const failure_state* state;
  std::weak_ptr<failure_state> owner;
};
struct rank_directory {
  std::mutex mutex;
  std::vector<local_rank> ranks;
};

rank_directory& local_directory() {
  static auto* process_directory = new rank_directory;
  return *process_directory;
}

}  // namespace

failure_state::failure_state(bootstrap& control, const membership& ranks, recorder::flight_recorder& recorder,
                             double timeout_s, std::function<void()> abort_backends)
    : m_control(control),
      m_ranks(ranks),
      m_recorder(recorder),
      m_timeout_s(timeout_s),
      m_abort_backends(std::move(abort_backends)),
      m_peers(ranks.rank, ranks.size),
      m_causes(control, ranks, m_peers, timeout_s) {
  m_peers.watch(ranks.rank_processes);
}

// ---- life cycle --------------------------------------------------------------------------------------

failure_state::~failure_state() {
  m_control.watch_processes(m_ranks.rank_processes);  // the records are about to be unmapped
}

void failure_state::map_records() {
  if (is_one_process()) return;  // the ranks notify each other directly
  const auto addresses = gather_values(m_control, m_recorder.address());
  auto processes = m_ranks.rank_processes;
  m_records.resize(processes.size());
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const int number = static_cast<int>(rank);
    if (processes[rank].pid == 0) continue;
    if (number == m_ranks.rank) {
      processes[rank].record = m_recorder.shared_health();
    } else {
      m_records[rank] = recorder::peer_recording::open(m_ranks.token, number, addresses[rank]);
      if (m_records[rank] != nullptr) processes[rank].record = m_records[rank]->health();
    }
    if (processes[rank].record == nullptr)
      log(log_level::info,
          "rank {}: the flight recorder of rank {} cannot be read, so its failures arrive through the "
          "bootstrap "
          "instead of shared memory",
          m_ranks.rank, rank);
  }
  m_control.watch_processes(processes);
  m_peers.watch(processes);
}

void failure_state::join(const std::shared_ptr<failure_state>& rank,
                         const std::shared_ptr<failure_state>& parent) {
  rank->m_parent = parent;
  if (parent) rank->m_causes.set_subcommunicator();
  {
    const std::lock_guard lock(local_directory().mutex);
    local_directory().ranks.push_back({rank->m_ranks.token, rank.get(), rank});
  }
  // Destroyed before the service of the stores, which was created first and delays the exit.
  struct exit_publisher {
    ~exit_publisher() { publish_exit(); }
  };
  static const exit_publisher publisher;
}

void failure_state::publish_exit() noexcept {
  const std::unique_lock lock(local_directory().mutex, std::try_to_lock);
  if (!lock) return;  // a thread that never returns may hold it
  for (const local_rank& each : local_directory().ranks)
    // A forked child shares the connections of its parent and must not close them.
    if (const auto rank = each.owner.lock(); rank && rank->m_recorder.mark_exiting())
      rank->m_control.disconnect();
}

// Returns the other ranks of this communicator in this process. Takes no reference to this rank: if it were the last
// one, the calling thread would destroy the rank.
std::vector<std::shared_ptr<failure_state>> failure_state::other_local_ranks() const {
  const std::lock_guard lock(local_directory().mutex);
  std::vector<std::shared_ptr<failure_state>> live_ranks;
  for (const local_rank& each : local_directory().ranks)
    if (each.token == m_ranks.token && each.state != this)
      if (auto rank = each.owner.lock()) live_ranks.push_back(std::move(rank));
  return live_ranks;
}

bool failure_state::close(const std::function<void()>& destroy) {
  {
    // A failed rank of this process would wait until `destroy` returns.
    const std::lock_guard directory_lock(local_directory().mutex);
    std::erase_if(local_directory().ranks, [this](const local_rank& each) { return each.state == this; });
  }
  const std::lock_guard lock(m_abort_mutex);
  if (m_is_closed.exchange(true)) return false;
  destroy();
  m_recorder.mark_destroyed();
  return true;
}

// ---- aborting ----------------------------------------------------------------------------------------

void failure_state::abort_this_rank(const failure_info& failure, notification_scope scope) noexcept {
  {
    const std::lock_guard lock(m_failure_mutex);
    if (m_failure) return;
    m_failure = failure;
  }
  if (m_causes.should_query_peers()) mark_aborted();
  // Publish the failure before the backends release blocked ranks, so that a released rank
  // finds the root cause.
  if (scope == notification_scope::all_ranks && !is_one_process()) m_control.publish_failure(failure);
  m_recorder.fail(failure);
  m_is_aborted.store(true, std::memory_order_release);
  m_control.cancel();
  const std::lock_guard lock(m_abort_mutex);
  if (!m_is_closed) m_abort_backends();
}

void failure_state::abort(const failure_info& failure, notification_scope scope) noexcept {
  abort_this_rank(failure, scope);
  for (const auto& local_rank : other_local_ranks())
    local_rank->abort_this_rank(failure, notification_scope::this_process);
}

void failure_state::mark_aborted() noexcept {
  m_peers.mark_aborted();
  if (!m_peers.has_all_records()) m_control.mark_aborted();
}

// On one node, causes are read from shared memory, and the exit of a process is visible without a report.
// Causes from other nodes arrive through the store. For a subcommunicator, the parent looks for the cause.
double failure_state::root_cause_wait_s() const noexcept {
  constexpr double memory_wait_s = 0.05, store_wait_s = 2;
  const bool is_cause_local = m_ranks.nodes == 1 || !m_parent.expired() || m_peers.find_lost();
  return is_cause_local ? memory_wait_s : std::min(store_wait_s, m_timeout_s);
}

// If no rank has published a root cause, reports the first known consequence, for example an exited rank.
bool failure_state::abort_on_backend_failure(failure_info& failure) noexcept {
  // A late rank that fails immediately must not mark itself aborted, because peers that are still querying would
  // no longer attribute the failure to it.
  const auto failed_ranks = failure.failed_ranks();
  const bool is_blamed = std::ranges::find(failed_ranks, m_ranks.rank) != failed_ranks.end();
  const bool queries_peers = m_causes.should_query_peers() && !(is_blamed && has_arrived_late());
  if (queries_peers) mark_aborted();
  if (is_secondary_status(failure.status)) {
    wait_for_failures(root_cause_wait_s());
    if (is_aborted()) return false;
  }
  // Query once for all ranks of a process. The queries of the other processes take equally long.
  if (queries_peers && !is_aborted() && !m_causes.remove_reporting_ranks(failure))
    wait_for_failures(2 * m_causes.report_wait_s());
  if (queries_peers && is_aborted()) return false;
  abort(failure);
  return true;
}

// Returns true if this rank has not started to wait or has waited less than half of the timeout. Its peers have
// then waited longer.
bool failure_state::has_arrived_late() const noexcept {
  if (m_waiting_operation.load(std::memory_order_relaxed) != m_recorder.call_count()) return true;
  const steady_clock::time_point wait_begin{
      steady_clock::duration(m_wait_begin.load(std::memory_order_relaxed))};
  return std::chrono::duration<double>(steady_clock::now() - wait_begin).count() < m_timeout_s / 2;
}

std::optional<failure_info> failure_state::find_earlier_report(const failure_info& failure) const {
  const std::lock_guard lock(m_failure_mutex);
  if (!m_failure || m_failure->rank != failure.rank) return std::nullopt;
  const bool is_from_backend = !is_secondary_status(failure.status) && m_failure->status == failure.status &&
                               std::strcmp(m_failure->backend, failure.backend) == 0;
  const bool is_from_wait =
      failure.status == ISTHMUS_ERROR_ABORTED && m_failure->status == ISTHMUS_ERROR_REMOTE;
  if (!is_from_backend && !is_from_wait) return std::nullopt;
  failure_info earlier_failure = *m_failure;
  earlier_failure.collective = failure.collective;
  return earlier_failure;
}

void failure_state::abort_out_of_sync(failure_info failure) noexcept {
  failure.rank = m_ranks.rank;
  abort(failure, notification_scope::this_process);
}

void failure_state::abort_on_interrupt() noexcept {
  failure_info failure =
      make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
                 fmt::format("rank {} was interrupted while it waited for other ranks", m_ranks.rank),
                 "destroy the communicator on every rank and create a new one")
          .info();
  failure.rank = m_ranks.rank;
  abort(failure);
}

void failure_state::throw_aborted() const {
  const std::lock_guard lock(m_failure_mutex);
  failure_info info = *m_failure;
  info.status = ISTHMUS_ERROR_ABORTED;
  copy_text(info.message, sizeof info.message,
            fmt::format("the communicator was aborted by an earlier failure ({}{}): {}",
                        isthmus_status_name(m_failure->status),
                        m_failure->rank >= 0 ? fmt::format(" on rank {}", m_failure->rank) : std::string(),
                        m_failure->message));
  info.rank = m_ranks.rank;
  if (info.hint[0] == '\0')
    copy_text(info.hint, sizeof info.hint, "destroy the communicator on every rank and create a new one");
  throw error(info);
}

std::optional<failure_info> failure_state::failure() {
  if (!is_aborted()) return std::nullopt;
  const std::lock_guard abort_lock(m_abort_mutex);
  const std::lock_guard lock(m_failure_mutex);
  return m_failure;
}

// ---- failures of other ranks -------------------------------------------------------------------------

void failure_state::take_over_failures(double wait_s, bool is_logged) noexcept {
  if (is_aborted() || is_one_process()) return;
  if (const auto cause = m_control.wait_for_failure(wait_s)) {
    if (is_logged)
      log(log_level::error, "rank {}: rank {} failed: {}", m_ranks.rank, cause->rank, cause->message);
    return abort(*cause, notification_scope::this_process);
  }
  // On a device, the host does not know which ranks a wait needs.
  const bool is_on_host = m_ranks.device.platform == ISTHMUS_PLATFORM_HOST;
  const auto lost_rank = is_on_host ? find_lost_participant() : m_peers.find_lost();
  if (!lost_rank) return;
  abort_on_peer(lost_rank, ISTHMUS_ERROR_REMOTE,
                fmt::format("rank {} exited before it destroyed its communicator, which rank {} still uses",
                            *lost_rank, m_ranks.rank),
                "check that rank for a crash or an early exit", is_logged);
}

void failure_state::abort_on_peer(std::optional<int> failed_rank, isthmus_status status,
                                  const std::string& message, const char* hint, bool is_logged) noexcept {
  failure_info failure = make_error(status, ISTHMUS_HERE, message, hint).info();
  if (failed_rank) m_causes.attribute(failure, std::array{*failed_rank});
  failure = m_causes.with_diagnosis(failure);
  failure.rank = m_ranks.rank;
  if (const recorder::latest_operation call = m_recorder.latest(); call.is_busy)
    failure.collective = call.collective;
  if (is_logged) log(log_level::error, "{}; {}", failure.message, failure.hint);
  abort(failure);
}

// A backend checks only the ranks that it waits for. These may be late, so that no rank would wait for the lost
// one. A rank that exits after its part of the collective is no failure, because the others can complete the call.
// Messages involve only two ranks, and a rank whose record is not visible may have completed its part.
std::optional<int> failure_state::find_lost_participant() noexcept {
  const std::uint64_t number = m_recorder.latest().collective_number;
  const auto now = steady_clock::now();
  if (number == 0 || now.time_since_epoch().count() < m_next_process_check.load(std::memory_order_relaxed))
    return std::nullopt;
  m_next_process_check.store((now + poll_interval).time_since_epoch().count(), std::memory_order_relaxed);
  for (std::size_t rank = 0; rank < m_records.size(); ++rank) {
    const rank_process& peer = m_peers.process(static_cast<int>(rank));
    // The flag is final if it is read after the exit.
    if (m_records[rank] != nullptr && peer.has_exited() && !peer.has_destroyed_communicator() &&
        !m_records[rank]->has_completed(number))
      return static_cast<int>(rank);
  }
  return std::nullopt;
}

void failure_state::poll_node() noexcept {
  if (const auto parent = m_parent.lock(); parent && !parent->m_is_closed) parent->poll_node();
  if (is_aborted() || is_one_process()) return;
  if (const auto cause = m_peers.read_failure()) abort(*cause, notification_scope::this_process);
}

void failure_state::poll() noexcept {
  // A wait in a subcommunicator blocks the parent's call, and the parent may know of a
  // failure outside the subcommunicator.
  if (const auto parent = m_parent.lock(); parent && !parent->m_is_closed) parent->poll();
  if (is_aborted() || is_one_process()) return;
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

// ---- calls into native libraries ---------------------------------------------------------------------

void failure_state::watch_calls() {
  watch_options rules;
  rules.timeout = std::chrono::duration<double>(m_timeout_s * watch_grace_factor + watch_grace_s);
  rules.interval = std::chrono::milliseconds(static_cast<int>(std::clamp(m_timeout_s * 100, 10.0, 1000.0)));
  rules.operation = [this]() -> watched_operation {
    const recorder::latest_operation call = m_recorder.latest();
    return {call.is_busy && !is_aborted() ? call.sequence : 0, {}};
  };
  rules.on_wait = [this](std::uint64_t operation) { check_long_call(operation); };
  rules.has_slow_actions = true;
  rules.on_stuck = [this](std::uint64_t) {
    fail_stuck_call();
    return true;
  };
  m_watch = std::make_unique<watch>(std::move(rules));
}

void failure_state::fail_stuck_call() {
  const recorder::latest_operation stuck_call = m_recorder.latest();
  abort_on_peer(
      std::nullopt, ISTHMUS_ERROR_TIMEOUT,
      fmt::format("rank {} of {} has been inside {} of {} x {} for longer than the timeout of {} s (operation "
                  "{} of this communicator): the native library has not returned",
                  m_ranks.rank, m_ranks.size, isthmus_collective_name(stuck_call.collective), stuck_call.count,
                  isthmus_datatype_name(stuck_call.datatype), m_timeout_s, stuck_call.sequence),
      "check that every rank runs and called the same collective, or raise timeout_s in the config file", true);
}

// Checks for failed and exited ranks during a long operation, because native libraries do not check.
void failure_state::check_long_call(std::uint64_t operation) {
  take_over_failures(0, true);
  if (is_aborted()) return;
  const auto exited_rank = m_peers.find_exited();
  // The last messages of the exited rank may still be in flight, so report the exit only if the operation
  // still runs at the second check.
  if (exited_rank && operation == std::exchange(m_suspect_operation, operation))
    abort_on_peer(
        exited_rank, ISTHMUS_ERROR_REMOTE,
        fmt::format("rank {} exited while rank {} was inside {}, which cannot complete without it",
                    *exited_rank, m_ranks.rank, isthmus_collective_name(m_recorder.latest().collective)),
        "check that rank for a crash or an early exit", true);
}

}  // namespace isthmus
