// One rank as the front end sees it: its device, its handle of the C ABI, and what failed in the background.
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

namespace isthmus {

/// How operations of the host platform run. Its backends block, so the choice is in whose thread.
enum class host_execution {
  // In the calling thread, which returns when the operation is complete. The default, because it costs
  // about a microsecond where a host task costs tens (docs/sycl.md).
  calling_thread,
  // In a SYCL host task; the call returns at once. Only for communicators with one rank in this process:
  // DPC++ runs host tasks on one thread, so two blocking ranks would wait for each other for ever. With
  // the mpi backend, MPI must allow calls from other threads.
  host_task
};

/// How an operation reaches the core; communicator::path() tells it, docs/sycl.md has what each asks for.
/// - calling_thread: the host platform; complete when the call returns.
/// - host_task: the host platform by a SYCL host task; the call returns at once.
/// - native_command: CUDA and HIP; put on the native stream by a command of the queue, no host waits.
/// - native_stream: the stream itself; in-order queues and USM only, and the host waits for dependencies that
///   are passed.
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

// The path of every call on a device, and why; decided once, reported by explain and the log.
struct path_choice {
  enqueue_path path;
  std::string reason;
};

/// Depends on the platform, the choice of the program and what this SYCL implementation has; never on the call.
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

/// The core logs by itself; the path of a SYCL call is only known here.
inline bool is_log_enabled() {
  const char* level = std::getenv("ISTHMUS_LOG");
  const std::string_view text = level == nullptr ? "" : level;
  return text == "trace" || text == "debug" || text == "info";
}

/// Destroying waits for this rank's outstanding operations, never for other ranks.
struct handle_deleter {
  void operator()(isthmus_communicator handle) const noexcept { isthmus_communicator_destroy(handle); }
};

/// What all copies of a communicator's work share: the handle, the order of asynchronous operations, the first
/// failure in the background. Lives until the communicator and all of its work are gone.
class rank_state {
 public:
  // Takes the handle over, also when it throws.
  rank_state(isthmus_communicator handle, const sycl::device& device, host_execution host)
      : m_handle(handle), m_device(device) {
    check(isthmus_communicator_rank(handle, &m_rank));
    check(isthmus_communicator_size(handle, &m_size));
    check(isthmus_communicator_local_size(handle, &m_local_size));
    check(isthmus_communicator_device(handle, &m_native_device));
    if (host == host_execution::host_task && m_local_size > 1) {
      throw make_exception({.status = ISTHMUS_ERROR_INVALID_ARGUMENT,
                            .message = "host = host_task: " + std::to_string(m_local_size) +
                                       " ranks of this communicator live in this process; the rule is one",
                            .hint = "use host_execution::calling_thread with groups or a thread per rank",
                            .rank = m_rank});
    }
    if (host == host_execution::host_task && !can_run_host_work(device)) {
      throw make_exception(
          {.status = ISTHMUS_ERROR_UNSUPPORTED,
           .message = "host = host_task: this SYCL implementation has no host tasks on device '" +
                      device.get_info<sycl::info::device::name>() +
                      "'; what it has in their place runs before its dependencies are done",
           .hint = "use host_execution::calling_thread",
           .rank = m_rank});
    }
    if (!has_native_commands(m_native_device.platform)) {
      throw make_exception({.status = ISTHMUS_ERROR_UNSUPPORTED,
                            .message = "the SYCL compiler made this program without platform " +
                                       std::string(isthmus_platform_name(m_native_device.platform)) +
                                       ", for device '" + device.get_info<sycl::info::device::name>() + "'",
                            .hint = "name it in --acpp-targets, or use the target generic",
                            .rank = m_rank});
    }
    m_path = choose_path(m_native_device.platform, host);
    if (is_log_enabled()) {
      std::fprintf(stderr, "[isthmus] sycl: rank %d on %s, platform %s: path %s (%s)\n", m_rank,
                   device.get_info<sycl::info::device::name>().c_str(),
                   isthmus_platform_name(m_native_device.platform), path_name(m_path.path), m_path.reason.c_str());
    }
  }
  rank_state(const rank_state&) = delete;
  rank_state& operator=(const rank_state&) = delete;
  ~rank_state() = default;

  /// Null after close().
  isthmus_communicator handle() const noexcept { return m_handle.get(); }
  const sycl::device& device() const noexcept { return m_device; }
  /// Platform and ordinal, as the core knows the device.
  isthmus_device native() const noexcept { return m_native_device; }
  int rank() const noexcept { return m_rank; }
  int size() const noexcept { return m_size; }
  int local_size() const noexcept { return m_local_size; }
  /// The path of every call, and why.
  const path_choice& path() const noexcept { return m_path; }

  // Operations of one communicator keep their order, also on out-of-order queues: each asynchronous one
  // depends on the one before, unless an in-order queue sees to it, which is cheaper. Returns the event of
  // `submit(previous)`.
  template <typename Submit>
  sycl::event submit_in_order(const sycl::queue& queue, Submit&& submit) {
    const std::lock_guard lock(m_order_mutex);
    const bool same_queue = m_last_queue && *m_last_queue == queue;
    m_last_event = submit(same_queue && queue.is_in_order() ? std::nullopt : m_last_event);
    if (!same_queue) m_last_queue = queue;
    return *m_last_event;
  }

  // The same for work that calls the core in the background, which the handle must outlive: the work calls
  // end() when it has done so.
  template <typename Submit>
  sycl::event submit_in_background(const sycl::queue& queue, Submit&& submit) {
    ++m_in_flight;
    try {
      sycl::event event = submit_in_order(queue,submit);
      start_commands(queue.get_context());  // other ranks wait for this one's part
      return event;
    } catch (...) {
      finish_background_work();
      throw;
    }
  }
  void finish_background_work() noexcept {
    if (--m_in_flight == 0) m_in_flight.notify_all();
  }
  // Waits for this rank's host tasks and native commands to have called the core, each of which ends by the
  // communicator's timeout at the latest, and destroys the handle; what is left may be held by a task that the
  // runtime has not yet thrown away.
  void close() noexcept {
    while (const std::size_t remaining = m_in_flight) m_in_flight.wait(remaining);
    m_handle.reset();
  }

  /// Keeps the first failure for async_error(). Any thread.
  void record_failure(const exception& failure) {
    const std::lock_guard lock(m_failure_mutex);
    if (!m_failure) m_failure = failure;
  }
  /// The first failure in the background. Any thread.
  std::optional<exception> failure() const {
    const std::lock_guard lock(m_failure_mutex);
    return m_failure;
  }

 private:
  std::unique_ptr<isthmus_communicator_impl, handle_deleter> m_handle;
  sycl::device m_device;
  isthmus_device m_native_device{};  // platform and ordinal, as the core has them
  int m_rank = -1;
  int m_size = 0;
  int m_local_size = 0;  // ranks of this process
  path_choice m_path{};
  std::mutex m_order_mutex;                        // guards what the last operation left; its holder may take m_failure_mutex
  std::optional<sycl::event> m_last_event;         // of the latest asynchronous operation
  std::optional<sycl::queue> m_last_queue;   // and where it went
  std::atomic<std::size_t> m_in_flight = 0;  // work that has not called the core yet, or is in it
  mutable std::mutex m_failure_mutex;                // guards what follows
  std::optional<exception> m_failure;        // the first that happened in the background
};

}  // namespace detail
}  // namespace isthmus

#endif
