// Groups: operations that start together, whatever communicators they are on. That is how one thread
// drives several ranks (communicator::create_all) and how send and recv are paired without deadlock.
//
//   isthmus::group group;
//   for (int r = 0; r < 2; ++r) ranks[r].allreduce(queues[r], send[r], recv[r], n);
//   std::vector<sycl::event> done = group.end();
//
// Ordering. Nothing starts before end(); an event that a call inside the group returned says nothing, the
// events of end() do, in the order of the calls. On the host platform end() returns when all operations
// are complete; by host tasks (host_execution) at once, if all are on USM, one communicator and one queue. On a
// device platform it returns at once; queues must be in-order there.
// Errors. If a call throws, or an operation is invalid, none of the group starts.
// Threads. A group belongs to the thread that made it. Groups nest; the outermost end starts the work.
#ifndef ISTHMUS_SYCL_GROUP_HPP
#define ISTHMUS_SYCL_GROUP_HPP

#include <atomic>
#include <exception>
#include <isthmus/sycl/submit.hpp>
#include <vector>

namespace isthmus {

namespace detail {

/// What a thread has collected; requests start when the depth is 0 again.
struct group_state {
  int depth = 0;                  // groups within groups
  bool is_abandoned = false;           // a nested group was left by an exception
  std::vector<collective_request> requests;  // in call order
};

/// Every thread has its own: a group never sees the calls of another.
inline group_state& thread_group() {
  thread_local group_state state;
  return state;
}

// Between the core's group_start and group_end; the end is called even if an operation was refused,
// because the core then starts none of them.
template <typename Enqueue>
void run_core_group(Enqueue&& enqueue_requests) {
  check(isthmus_group_start());
  std::exception_ptr first_error;
  try {
    enqueue_requests();
  } catch (...) {
    first_error = std::current_exception();
  }
  const isthmus_status end_status = isthmus_group_end();
  if (first_error) std::rethrow_exception(first_error);
  check(end_status);
}

/// The host platform: waits for what comes before, runs all operations in one group of the core, returns when
/// they are complete. One accessor for each buffer, however many operations use it.
inline std::vector<sycl::event> run_group_blocking(std::vector<collective_request>& requests) {
  buffer_uses uses;
  for (collective_request& request : requests) {
    wait_for_earlier_work(request);
    uses.add(request);
  }
  const host_views views(uses);
  run_core_group([&] {
    for (collective_request& request : requests) {
      enqueue(request, views.address(request.send), views.address(request.recv), nullptr);
    }
  });
  return std::vector<sycl::event>(requests.size());
}

/// Whether a host task can take the whole group: one rank with that path, one queue, and no buffers, of which a
/// command has two at most.
inline bool runs_in_host_task(const std::vector<collective_request>& requests) {
  for (const collective_request& request : requests) {
    if (request.rank != requests.front().rank || request.rank->path().path != enqueue_path::host_task ||
        !(request.queue == requests.front().queue) || request.uses_buffers())
      return false;
  }
  return true;
}

/// The host platform by a host task: all operations in one group of the core. Returns at once.
inline std::vector<sycl::event> run_group_in_host_task(std::vector<collective_request>&& requests) {
  const auto shared_requests = std::make_shared<std::vector<collective_request>>(std::move(requests));
  const collective_request& first = shared_requests->front();
  const auto submit = [&](const std::optional<sycl::event>& previous) {
    sycl::queue queue = first.queue;
    return queue.submit([&](sycl::handler& handler) {
      for (const collective_request& request : *shared_requests) handler.depends_on(request.dependencies);
      if (previous) handler.depends_on(*previous);
      host_work(handler, [shared_requests] {
        run_in_background(*shared_requests->front().rank, [&] {
          run_core_group([&] {
            for (collective_request& request : *shared_requests) enqueue(request, request.send.pointer, request.recv.pointer, nullptr);
          });
        });
      });
    });
  };
  return std::vector<sycl::event>(shared_requests->size(), first.rank->submit_in_background(first.queue, submit));
}

// Three steps, because an event that is recorded before the core launches the group would come too early:
// a native command on each queue finds stream and addresses once its dependencies are on the stream; then
// the core starts the group; then a second native command on each (in-order) queue is the event.
inline std::vector<sycl::event> run_group_native(std::vector<collective_request>& requests) {
  struct native_command {
    std::shared_ptr<collective_request> request;
    native_arguments arguments;
    std::atomic<bool> is_ready = false;
  };
  std::vector<std::shared_ptr<native_command>> commands;
  for (collective_request& request : requests) {
    if (!request.queue.is_in_order()) {
      throw request.error(ISTHMUS_ERROR_UNSUPPORTED, "a group with an out-of-order queue on a device platform",
                          "use in-order queues for groups");
    }
    auto& command = commands.emplace_back(std::make_shared<native_command>());
    command->request = std::make_shared<detail::collective_request>(std::move(request));
    order_native_command(*command->request, std::nullopt);
    sycl::event event =
        submit_native(command->request, std::nullopt, [command](const native_arguments& arguments) {
          command->arguments = arguments;
          command->is_ready.store(true, std::memory_order_release);
        });
    start_commands(command->request->queue.get_context());
    // Only behind an unfinished host task does the runtime put the command off.
    if (!command->is_ready.load(std::memory_order_acquire)) event.wait();
  }
  run_core_group([&] {
    for (const auto& command : commands) {
      enqueue(*command->request, command->arguments.send, command->arguments.recv, command->arguments.stream);
    }
  });
  std::vector<sycl::event> events;
  for (const auto& command : commands) {
    command->request->dependencies.clear();
    events.push_back(submit_native(command->request, std::nullopt, [](const native_arguments&) {}));
  }
  start_commands(commands.front()->request->queue.get_context());
  return events;
}

/// Streams that are the queues: the host waits for explicit dependencies only, the core enqueues, a marker on
/// each queue is the event.
inline std::vector<sycl::event> run_group_on_streams(std::vector<collective_request>& requests) {
  for (collective_request& request : requests) {
    require_plain_stream(request);
    for (sycl::event& dependency : request.dependencies) dependency.wait();
  }
  run_core_group([&] {
    for (collective_request& request : requests) {
      enqueue(request, request.send.pointer, request.recv.pointer, direct_stream(request));
    }
  });
  std::vector<sycl::event> events;
  for (collective_request& request : requests) events.push_back(submit_marker(request.queue));
  return events;
}

/// By the path of the communicators, which are all of the host or all of devices. Calls of one group may be on
/// several communicators.
inline std::vector<sycl::event> run_group(std::vector<collective_request>& requests) {
  if (requests.empty()) return {};
  const enqueue_path path = requests.front().rank->path().path;
  const bool is_host = requests.front().rank->native().platform == ISTHMUS_PLATFORM_HOST;
  for (const collective_request& request : requests) {
    if ((request.rank->native().platform == ISTHMUS_PLATFORM_HOST) != is_host) {
      throw request.error(ISTHMUS_ERROR_UNSUPPORTED, "a group with both host and device communicators",
                          "use one group for each platform");
    }
  }
  if (is_host && runs_in_host_task(requests)) return run_group_in_host_task(std::move(requests));
  if (is_host) return run_group_blocking(requests);
  return path == enqueue_path::native_command ? run_group_native(requests) : run_group_on_streams(requests);
}

}  // namespace detail

/// A scope whose operations start together, whatever communicators they are on: that is how one thread drives
/// several ranks (communicator::create_all), and how send and recv are paired without deadlock.
/// @code
/// auto ranks = isthmus::communicator::create_all(devices);
/// isthmus::group group;
/// for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].allreduce(queues[r], send[r], recv[r], count);
/// std::vector<sycl::event> done = group.end();
/// @endcode
/// Ordering. Nothing starts before end(); an event that a call inside the group returned says nothing, the
/// events of end() do. On the host platform end() returns when all operations are complete; with
/// host_execution::host_task it returns at once if all are on USM, one communicator and one queue. On a device
/// platform it returns at once, and queues must be in order there.
///
/// Buffers. One buffer may appear in several operations of a group. Host accessors of the program on buffers of
/// the group must be gone before end(): it would wait for them for ever.
///
/// Errors. If a call throws, or an operation is invalid, none of the group starts.
///
/// Threads. A group belongs to the thread that made it. Groups nest; the outermost end starts the work.
class group {
 public:
  group() { ++detail::thread_group().depth; }
  group(const group&) = delete;
  group& operator=(const group&) = delete;

  /// Starts the work of the outermost group; of a nested one, nothing.
  /// @return One event for each operation of the thread's outermost group, in call order; none for a nested
  ///   group.
  /// @throws isthmus::exception The first operation that was refused, or ISTHMUS_ERROR_UNSUPPORTED for host and
  ///   device communicators in one group and for an out-of-order queue on a device. Nothing has started then.
  std::vector<sycl::event> end() {
    m_is_ended = true;
    return leave(false);
  }

  /// Ends the group unless end() was called; when an exception passes through, nothing of it starts.
  /// @throws isthmus::exception As end().
  ~group() noexcept(false) {
    if (!m_is_ended) leave(std::uncaught_exceptions() > m_exceptions_at_entry);
  }

 private:
  std::vector<sycl::event> leave(bool abandon) {
    detail::group_state& state = detail::thread_group();
    state.is_abandoned |= abandon;
    if (--state.depth > 0) return {};
    std::vector<detail::collective_request> requests = std::move(state.requests);
    const bool was_abandoned = state.is_abandoned;
    state = {};
    if (was_abandoned) return {};
    return detail::run_group(requests);
  }

  int m_exceptions_at_entry = std::uncaught_exceptions();  // more at the end: one passes through
  bool m_is_ended = false;
};

}  // namespace isthmus

#endif
