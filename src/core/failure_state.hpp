// Failure state of one rank of one communicator: whether it has been aborted and why. It detects failures of
// other ranks, notifies them of failures of this rank, and ends waits that exceed the timeout.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/membership.hpp"
#include "core/resolver.hpp"
#include "failure/health.hpp"
#include "failure/watchdog.hpp"
#include "recorder/flight_recorder.hpp"

namespace isthmus {

// Thread safety: any thread, except where noted.
class failure_state {
 public:
  // `abort_backends` releases the ranks that are blocked in backends. It is not called during or after close().
  // Lifetime: the other arguments must outlive this object.
  failure_state(bootstrap& control, const membership& ranks, recorder::flight_recorder& recorder,
                double timeout_s, std::function<void()> abort_backends);
  failure_state(const failure_state&) = delete;
  failure_state& operator=(const failure_state&) = delete;
  ~failure_state();

  // Collective. Maps the health records of the other ranks. Ranks without a reachable record publish failures only
  // through the bootstrap. Ordering: another exchange must follow, so that no rank removes its record before its
  // peers have mapped it. One thread.
  void map_records();
  // Registers this rank, so that the other ranks of its process notify it. `parent` is set if a backend of that
  // communicator created this one.
  static void join(const std::shared_ptr<failure_state>& rank, const std::shared_ptr<failure_state>& parent);
  // Watches calls into native libraries, which have no timeout. If an operation takes longer than the timeout,
  // logs it and aborts the communicator; the backend's abort function then ends the native call. The mpi backend
  // calls MPI_Abort, which ends the job.
  void watch_calls();
  void end_watch() { m_watch.reset(); }
  // Runs `destroy`, which destroys the backends, unless close() has been called before. Returns false in that case.
  // Afterwards, the process may exit without being reported as lost.
  bool close(const std::function<void()>& destroy);
  bool is_closed() const noexcept { return m_is_closed.load(); }

  bool is_aborted() const noexcept { return m_is_aborted.load(std::memory_order_acquire); }
  void check_alive() const {
    if (is_aborted()) [[unlikely]]
      throw_aborted();
  }
  // Returns the failure that aborted the communicator.
  // Blocking: until another thread has released the backends, because the caller may then reuse its buffers.
  std::optional<failure_info> failure();
  const resolver& causes() const { return m_causes; }
  resolver& causes() { return m_causes; }

  // Aborts the communicator on all ranks.
  void abort(const failure_info& failure) noexcept { abort(failure, notification_scope::all_ranks); }
  // Aborts this rank only; no peer is notified.
  void abort_local(const failure_info& failure) noexcept {
    abort_this_rank(failure, notification_scope::this_process);
  }
  // Aborts because of a failure that a backend reported. Waits briefly for the root cause from another rank,
  // which takes precedence. Returns false if the communicator has been aborted with that cause. Otherwise,
  // removes the ranks that reported from the failed ranks of `failure`.
  bool abort_on_backend_failure(failure_info& failure) noexcept;
  // The calling thread was interrupted while it waited.
  void abort_on_interrupt() noexcept;
  // An exchange failed, so no other one may follow. Notifies only the ranks of this process; the bootstrap has
  // notified the others.
  void abort_out_of_sync(failure_info failure) noexcept;
  // Finds the failure of this rank that ended the call of a backend, which must not be reported as a consequence of
  // itself: a wait detected a lost rank, or the backend has already aborted the communicator
  // (isthmus_backend_context::abort_communicator) and returns the same failure.
  std::optional<failure_info> find_earlier_report(const failure_info& failure) const;

  // Takes over a failure that a rank in another process has published. Cheap, because every wait calls it.
  void poll() noexcept;
  // Takes over a failure that a rank on this node has published, without rate limit.
  // Ordering: a failed rank may overwrite buffers that it shares with peers, but publishes its failure first.
  // If a caller sees no failure here, it can therefore trust results that it has already read.
  void poll_node() noexcept;
  // Takes over a failure that any rank has published, or the loss of a rank, without rate limit.
  // Blocking: waits at most `wait_s`.
  void wait_for_failures(double wait_s) noexcept { take_over_failures(wait_s, false); }

 private:
  // Selects which ranks to notify. A failure that another process has published is not published again.
  enum class notification_scope { all_ranks, this_process };
  void abort(const failure_info& failure, notification_scope scope) noexcept;
  void abort_this_rank(const failure_info& failure, notification_scope scope) noexcept;
  void mark_aborted() noexcept;
  // Publishes that this process is exiting although it has open communicators.
  static void publish_exit() noexcept;
  std::vector<std::shared_ptr<failure_state>> other_local_ranks() const;
  [[noreturn, gnu::cold]] void throw_aborted() const;
  bool is_one_process() const noexcept { return m_ranks.process_size == m_ranks.size; }
  // Returns how long to wait for the root cause. If the backend's own signals are faster than the bootstrap,
  // the root cause arrives after its consequences.
  double root_cause_wait_s() const noexcept;
  bool has_arrived_late() const noexcept;
  // Returns a rank of this node that exited and without which the current collective cannot complete.
  std::optional<int> find_lost_participant() noexcept;
  // `is_logged`: logs the failure before the backends release blocked ranks or, like the mpi backend, end the job.
  void take_over_failures(double wait_s, bool is_logged) noexcept;
  void abort_on_peer(std::optional<int> failed_rank, isthmus_status status, const std::string& message,
                     const char* hint, bool is_logged) noexcept;
  void fail_stuck_call();
  void check_long_call(std::uint64_t operation);

  bootstrap& m_control;
  const membership& m_ranks;
  recorder::flight_recorder& m_recorder;
  const double m_timeout_s;
  const std::function<void()> m_abort_backends;
  std::weak_ptr<failure_state> m_parent;  // set if its backend created this communicator
  std::vector<std::shared_ptr<const recorder::peer_recording>> m_records;  // by rank; NULL if not visible
  peer_monitor m_peers;
  resolver m_causes;

  std::atomic<bool> m_is_aborted{false};
  mutable std::mutex m_failure_mutex;
  std::optional<failure_info> m_failure;
  std::mutex m_abort_mutex;  // abort can race with the destruction of the backends
  std::atomic<bool> m_is_closed{false};

  std::atomic<std::uint64_t> m_waiting_operation{~std::uint64_t{0}};  // operation of the last poll()
  // Ticks of the steady clock.
  std::atomic<std::int64_t> m_wait_begin{0}, m_next_poll{0}, m_next_process_check{0};
  std::uint64_t m_suspect_operation = 0;  // watched operation during which a rank was found to have exited
  std::unique_ptr<watch> m_watch;         // for calls into native libraries; last, because it uses the others
};

}  // namespace isthmus
