#include "core/watchdog.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"
#include "bootstrap/peer_monitor.hpp"
#include "core/communicator.hpp"

namespace isthmus {
namespace {

// The watchdog waits longer than the timeout, so that backends with their own timeouts report first. Their
// errors contain more details.
constexpr double grace_factor = 1.05;
constexpr double grace_s = 0.5;

void abort_rank(communicator& rank, std::optional<int> failed_rank, isthmus_status status,
                const std::string& message, const char* hint) {
  failure_info failure = make_error(status, ISTHMUS_HERE, message, hint).info();
  if (failed_rank) rank.attribute_failure(failure, std::array{*failed_rank});
  failure = rank.with_diagnosis(failure);
  failure.rank = rank.ranks().rank;
  failure.collective = rank.in_flight().collective;
  log(log_level::error, "{}; {}", failure.message, failure.hint);
  rank.abort(failure);
}

// Finds another rank of this node whose process is in `state`.
std::optional<int> find_rank(const communicator& rank, process_state state) {
  return find_in_state(rank.ranks().rank_processes, state, rank.ranks().rank);
}

void fail_stuck_call(communicator& rank) {
  const recorder::latest_operation stuck_call = rank.in_flight();
  const auto stopped_rank = find_rank(rank, process_state::stopped);
  abort_rank(
      rank, stopped_rank, ISTHMUS_ERROR_TIMEOUT,
      fmt::format("rank {} of {} has been inside {} of {} x {} for longer than the timeout of {} s (operation "
                  "{} of this communicator): {}",
                  rank.ranks().rank, rank.ranks().size, isthmus_collective_name(stuck_call.collective),
                  stuck_call.count, isthmus_datatype_name(stuck_call.datatype), rank.timeout_s(),
                  stuck_call.sequence,
                  stopped_rank ? fmt::format("the process of rank {} is stopped", *stopped_rank)
                               : "the native library has not returned"),
      "check that every rank runs and called the same collective, or raise timeout_s in the config file");
}

// Checks for failed and exited ranks during a long operation, because native libraries do not check.
class failure_poller {
 public:
  explicit failure_poller(communicator& rank) : m_rank(rank) {}

  void operator()(std::uint64_t operation) {
    m_rank.wait_for_failures(0, [](const communicator& rank, const failure_info& cause) {
      log(log_level::error, "rank {}: rank {} failed: {}", rank.ranks().rank, cause.rank, cause.message);
    });
    if (m_rank.is_aborted()) return;
    const auto ended_rank = find_rank(m_rank, process_state::exited);
    // The last messages of the exited rank may still be in flight, so report the exit only if the operation
    // still runs at the second check.
    if (ended_rank && operation == std::exchange(m_suspect_operation, operation))
      abort_rank(
          m_rank, ended_rank, ISTHMUS_ERROR_REMOTE,
          fmt::format("rank {} exited while rank {} was inside {}, which cannot complete without it",
                      *ended_rank, m_rank.ranks().rank, isthmus_collective_name(m_rank.in_flight().collective)),
          "check that rank for a crash or an early exit");
  }

 private:
  communicator& m_rank;
  std::uint64_t m_suspect_operation = 0;
};

}  // namespace

std::unique_ptr<watch> watch_calls(communicator& rank) {
  watch_options rules;
  rules.timeout = std::chrono::duration<double>(rank.timeout_s() * grace_factor + grace_s);
  rules.interval =
      std::chrono::milliseconds(static_cast<int>(std::clamp(rank.timeout_s() * 100, 10.0, 1000.0)));
  rules.operation = [&rank]() -> watched_operation {
    const recorder::latest_operation call = rank.in_flight();
    return {call.is_busy && !rank.is_aborted() ? call.sequence : 0, {}};
  };
  rules.on_wait = [poller = failure_poller(rank)](std::uint64_t operation) mutable { poller(operation); };
  rules.has_slow_actions = true;
  rules.on_stuck = [&rank](std::uint64_t) {
    fail_stuck_call(rank);
    return true;
  };
  return std::make_unique<watch>(std::move(rules));
}

}  // namespace isthmus
