// The front end's state of one rank: its device, its C ABI handle, and asynchronous failures.
#ifndef ISTHMUS_SYCL_RANK_HPP
#define ISTHMUS_SYCL_RANK_HPP

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <isthmus/error.hpp>
#include <isthmus/sycl/features.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus {

/// The thread that executes operations on the host platform, where backends block.
enum class host_execution {
  // In the calling thread; the call returns when the operation is complete. This is the default, because it
  // costs about a microsecond, while a host task costs tens of microseconds (docs/guide/sycl.md).
  calling_thread,
  // In a SYCL host task; the call returns immediately. Only for communicators with one rank in this process:
  // DPC++ runs host tasks on one thread, so two blocking ranks would wait for each other forever. With the mpi
  // backend, MPI must allow calls from other threads.
  host_task
};

/// The path from an operation to the core. communicator::path() returns it. docs/guide/sycl.md lists the
/// requirements of each path.
/// - calling_thread: host platform; the operation is complete when the call returns.
/// - host_task: host platform in a SYCL host task; the call returns immediately.
/// - native_command: CUDA and HIP; a command of the queue enqueues the operation on the native stream, and no
///   host thread waits.
/// - native_stream: the call enqueues the operation on the stream directly; only for in-order queues and USM.
///   The host waits for explicit dependencies.
enum class enqueue_path { calling_thread, host_task, native_command, native_stream };

namespace detail {

inline const char* path_name(enqueue_path path) {
  switch (path) {
    case enqueue_path::calling_thread: return "calling_thread";
    case enqueue_path::host_task: return "host_task";
    case enqueue_path::native_command: return "native_command";
    case enqueue_path::native_stream: return "native_stream";
  }
  return "unknown";
}

// The path of a rank's calls and the reason for it. Selected once; explain() and the log report it.
struct path_choice {
  enqueue_path path;
  std::string reason;
};

/// Selects the path. It depends on the platform, the program's option and the SYCL implementation, but not
/// on the call.
inline path_choice choose_path(isthmus_platform platform, host_execution host) {
  switch (platform) {
    case ISTHMUS_PLATFORM_HOST:
      if (host == host_execution::host_task) return {enqueue_path::host_task, "host_execution::host_task"};
      return {enqueue_path::calling_thread, "host platform: the call returns when the operation is complete"};
    case ISTHMUS_PLATFORM_CUDA:
    case ISTHMUS_PLATFORM_HIP:
      if (native_enqueue_name != nullptr) return {enqueue_path::native_command, native_enqueue_name};
      return {enqueue_path::native_stream,
              "this SYCL implementation has no native enqueue: in-order queues and USM only"};
    case ISTHMUS_PLATFORM_LEVEL_ZERO:
    case ISTHMUS_PLATFORM_OPENCL:
      return {enqueue_path::native_stream,
              "the stream of this platform is the SYCL queue itself: in-order queues and USM only"};
    case ISTHMUS_PLATFORM_COUNT: break;
  }
  return {enqueue_path::calling_thread, "unknown platform"};
}

/// Returns whether the front end logs. The core has its own log, but only the front end knows the path
/// of SYCL calls.
inline bool is_log_enabled() {
  const char* level = std::getenv("ISTHMUS_LOG");
  const std::string_view text = level == nullptr ? "" : level;
  return text == "trace" || text == "debug" || text == "info";
}

/// Destroys the handle, which waits for this rank's outstanding operations but never for other ranks.
struct handle_deleter {
  void operator()(isthmus_communicator handle) const noexcept { isthmus_communicator_destroy(handle); }
};

/// The state that a communicator and its requests share: the handle, the order of asynchronous operations, and
/// the first asynchronous failure.
/// Lifetime: until the communicator and all of its requests have been destroyed.
class rank_state {
 public:
  // Takes ownership of the handle, even if the constructor throws.
  rank_state(isthmus_communicator handle, const sycl::device& device, host_execution host)
      : m_handle(handle), m_device(device), m_is_cpu(device.is_cpu()) {
    check(isthmus_communicator_rank(handle, &m_rank));
    check(isthmus_communicator_size(handle, &m_size));
    check(isthmus_communicator_local_size(handle, &m_local_size));
    check(isthmus_communicator_device(handle, &m_native_device));
    if (host == host_execution::host_task && m_local_size > 1) {
      throw make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                            .message = "host = host_task: " + std::to_string(m_local_size) +
                                       " ranks of this communicator are in this process, must be one",
                            .hint = "use host_execution::calling_thread with groups or one thread per rank",
                            .rank = m_rank});
    }
    if (host == host_execution::host_task && !can_run_host_work(device)) {
      throw make_exception(
          {.status = ISTHMUS_ERROR_UNSUPPORTED,
           .message = "host = host_task: this SYCL implementation has no host tasks on device '" +
                      device.get_info<sycl::info::device::name>() +
                      "'; its custom operations run before their dependencies are complete",
           .hint = "use host_execution::calling_thread",
           .rank = m_rank});
    }
    if (!has_native_commands(m_native_device.platform)) {
      throw make_exception({.status = ISTHMUS_ERROR_UNSUPPORTED,
                            .message = "this program was compiled without SYCL support for platform " +
                                       std::string(isthmus_platform_name(m_native_device.platform)) +
                                       ", for device '" + device.get_info<sycl::info::device::name>() + "'",
                            .hint = "add the platform to --acpp-targets, or use the target generic",
                            .rank = m_rank});
    }
    m_path = choose_path(m_native_device.platform, host);
    if (is_log_enabled()) {
      std::fprintf(stderr, "[isthmus] sycl: rank %d on %s, platform %s: path %s (%s)\n", m_rank,
                   device.get_info<sycl::info::device::name>().c_str(),
                   isthmus_platform_name(m_native_device.platform), path_name(m_path.path),
                   m_path.reason.c_str());
    }
  }
  rank_state(const rank_state&) = delete;
  rank_state& operator=(const rank_state&) = delete;
  ~rank_state() = default;

  /// Null after close().
  isthmus_communicator handle() const noexcept { return m_handle.get(); }
  const sycl::device& device() const noexcept { return m_device; }
  bool is_cpu() const noexcept { return m_is_cpu; }
  /// Platform and ordinal, as the core knows the device.
  isthmus_device native() const noexcept { return m_native_device; }
  int rank() const noexcept { return m_rank; }
  int size() const noexcept { return m_size; }
  int local_size() const noexcept { return m_local_size; }
  /// Returns the event of operations that are complete on return. All copies share one implementation, because
  /// creating an event takes longer than the rest of the front end.
  const sycl::event& complete_event() const noexcept { return m_complete_event; }
  /// Returns the path of all calls and the reason for it.
  const path_choice& path() const noexcept { return m_path; }

  // Submits an asynchronous operation after the previous one of this communicator, even on out-of-order queues.
  // The operation depends on the previous one unless both are on the same in-order queue, which keeps the order
  // at a lower cost. Returns the event of `submit(previous)`.
  template <typename Submit>
  sycl::event submit_in_order(const sycl::queue& queue, Submit&& submit) {
    const std::lock_guard lock(m_order_mutex);
    sycl::event event = submit(previous_on_other_queue(queue));
    m_last_event = queue.is_in_order() ? std::nullopt : std::optional(event);
    return event;
  }
  // For an operation of several steps on the in-order queue: returns the event that its first step must wait for.
  std::optional<sycl::event> begin_in_order(const sycl::queue& queue) {
    const std::lock_guard lock(m_order_mutex);
    auto previous = previous_on_other_queue(queue);
    m_last_event.reset();
    return previous;
  }
  // Returns this rank's own in-order queue in the context of `queue`.
  sycl::queue in_order_queue(const sycl::queue& queue) {
    const std::lock_guard lock(m_order_mutex);
    for (const sycl::queue& own : m_own_queues)
      if (own.get_context() == queue.get_context()) return own;
    return m_own_queues.emplace_back(queue.get_context(), queue.get_device(),
                                     sycl::property::queue::in_order{});
  }

  // Like submit_in_order(), but for work that calls the core in the background. The handle must outlive such
  // work. The work calls finish_background_work() after it has called the core.
  template <typename Submit>
  sycl::event submit_in_background(const sycl::queue& queue, Submit&& submit) {
    ++m_in_flight;
    std::optional<sycl::event> event;
    try {
      event = submit_in_order(queue, submit);
    } catch (...) {  // the work never runs
      finish_background_work();
      throw;
    }
    start_commands(queue);  // other ranks wait for this rank's part
    return *event;
  }
  void finish_background_work() noexcept {
    if (--m_in_flight == 0) m_in_flight.notify_all();
  }
  // Waits until this rank's host tasks and native commands have called the core, at most for the
  // communicator's timeout, and destroys the handle. This object may exist longer, because the runtime may not
  // have released all tasks.
  void close() noexcept {
    while (const std::size_t remaining = m_in_flight) m_in_flight.wait(remaining);
    m_handle.reset();
  }

  /// Stores the first failure for async_error(). Any thread may call it.
  void record_failure(const exception& failure) {
    const std::lock_guard lock(m_failure_mutex);
    if (!m_failure) m_failure = failure;
  }
  /// Returns the first asynchronous failure. Any thread may call it.
  std::optional<exception> failure() const {
    const std::lock_guard lock(m_failure_mutex);
    return m_failure;
  }

 private:
  // Returns the event of the previous operation if `queue` does not keep the order, and remembers the queue.
  std::optional<sycl::event> previous_on_other_queue(const sycl::queue& queue) {
    const bool is_same_queue = m_last_queue && *m_last_queue == queue;
    if (is_same_queue) return m_last_event;
    auto previous = m_last_event;
    if (m_last_queue && !previous) previous = submit_marker(*m_last_queue);
    m_last_queue = queue;
    return previous;
  }

  std::unique_ptr<isthmus_communicator_impl, handle_deleter> m_handle;
  sycl::device m_device;
  bool m_is_cpu;                     // stored, because each query is a call into the SYCL runtime
  sycl::event m_complete_event;      // default-constructed, so always complete
  isthmus_device m_native_device{};  // platform and ordinal of the core
  int m_rank = -1;
  int m_size = 0;
  int m_local_size = 0;  // ranks of this process
  path_choice m_path{};
  std::mutex m_order_mutex;                  // guards the last event and queue; locked before m_failure_mutex
  std::optional<sycl::queue> m_last_queue;   // of the most recent asynchronous operation
  std::optional<sycl::event> m_last_event;   // its event if that queue is out of order
  std::vector<sycl::queue> m_own_queues;     // for operations on out-of-order queues
  std::atomic<std::size_t> m_in_flight = 0;  // background work that has not finished its core call
  mutable std::mutex m_failure_mutex;        // guards m_failure
  std::optional<exception> m_failure;        // the first asynchronous failure
};

}  // namespace detail
}  // namespace isthmus

#endif
