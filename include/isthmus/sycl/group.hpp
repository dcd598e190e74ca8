// Groups: several operations that start together, on any communicators. With a group, one thread can drive
// several ranks (communicator::create_all), and send and recv can be paired without deadlock.
//
//   isthmus::group group;
//   for (int r = 0; r < 2; ++r) ranks[r].allreduce(queues[r], send[r], recv[r], n);
//   std::vector<sycl::event> done = group.end();
//
// The class isthmus::group below documents ordering, errors and thread safety.
#ifndef ISTHMUS_SYCL_GROUP_HPP
#define ISTHMUS_SYCL_GROUP_HPP

#include <algorithm>
#include <atomic>
#include <exception>
#include <isthmus/sycl/submit.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace isthmus {

namespace detail {

/// The requests that a thread has collected in a group. They start when the depth returns to 0.
struct group_state {
  int depth = 0;                             // nesting depth
  bool is_abandoned = false;                 // an exception left a nested group
  std::vector<collective_request> requests;  // in call order
};

/// Returns the calling thread's state. A group never contains calls of another thread.
inline group_state& thread_group() {
  thread_local group_state state;
  return state;
}

// Runs `enqueue_requests` between the core's group_start and group_end. Calls group_end even if a request was
// rejected; the core then starts none of the requests.
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

/// Host platform: waits for the dependencies, runs all operations in one group of the core, and returns when
/// they are complete. Creates one accessor per buffer, even if several operations use the buffer.
inline std::vector<sycl::event> run_group_blocking(std::vector<collective_request>& requests) {
  buffer_uses uses;
  const sycl::queue* previous = nullptr;
  for (collective_request& request : requests) {
    wait_for_dependencies(request);
    if (previous == nullptr || *previous != request.queue) wait_for_queue(request.queue);
    previous = &request.queue;
    uses.add(request);
  }
  const host_views views(uses);
  run_core_group([&] {
    for (collective_request& request : requests) {
      enqueue(request, views.address(request.send), views.address(request.recv), nullptr);
    }
  });
  return std::vector<sycl::event>(requests.size(), requests.front().rank->complete_event());
}

/// Returns whether one host task can run the whole group. All requests must belong to one queue and to one rank
/// that uses host tasks. They must not use buffers, because a command can have at most two.
inline bool runs_in_host_task(const std::vector<collective_request>& requests) {
  for (const collective_request& request : requests) {
    if (request.rank != requests.front().rank || request.rank->path().path != enqueue_path::host_task ||
        !(request.queue == requests.front().queue) || request.uses_buffers())
      return false;
  }
  return true;
}

/// Host platform with a host task: runs all operations in one group of the core. Returns immediately.
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
            for (collective_request& request : *shared_requests)
              enqueue(request, request.send.pointer, request.recv.pointer, nullptr);
          });
        });
      });
    });
  };
  return std::vector<sycl::event>(shared_requests->size(),
                                  first.rank->submit_in_background(first.queue, submit));
}

// The requests of a group that share a queue and at most two buffers. One native command serves all of them.
struct native_batch {
  explicit native_batch(const sycl::queue& in_order_queue) : queue(in_order_queue) {}

  sycl::queue queue;                           // in order
  std::optional<sycl::queue> unordered_queue;  // of the caller; `queue` is the rank's own
  std::vector<collective_request> requests;
  std::vector<std::size_t> indices;  // of the requests in the group
  std::vector<sycl::event> wait_events;
  buffer_uses uses;
  std::vector<native_arguments> arguments;  // of the requests, set by the command
  std::atomic<bool> is_ready = false;       // the command has set them
};

inline std::vector<std::shared_ptr<native_batch>> make_native_batches(
    std::vector<collective_request>& requests) {
  constexpr std::size_t max_buffers = command_views<sycl::target::device>::max_buffers;
  std::vector<std::shared_ptr<native_batch>> batches;
  for (std::size_t index = 0; index < requests.size(); ++index) {
    collective_request& request = requests[index];
    sycl::queue queue = request.queue;
    std::optional<sycl::queue> unordered_queue;
    if (!queue.is_in_order()) unordered_queue = std::exchange(queue, request.rank->in_order_queue(queue));
    auto match = std::ranges::find_if(batches, [&](const auto& batch) {
      return batch->queue == queue && batch->unordered_queue == unordered_queue &&
             batch->uses.can_add(request, max_buffers);
    });
    if (match == batches.end()) {
      match = batches.insert(match, std::make_shared<native_batch>(queue));
      (*match)->unordered_queue = unordered_queue;
    }
    (*match)->uses.add(request);
    (*match)->indices.push_back(index);
    (*match)->requests.push_back(std::move(request));
  }
  return batches;
}

// Submits a native command with the accessors of the batch, which runs `body(interop, accessors)`. Returns the
// result of `submit(queue, command group)`.
template <typename Body, typename Submit>
auto submit_native(const std::shared_ptr<native_batch>& batch, const Body& body, const Submit& submit) {
  return submit(batch->queue, [&](sycl::handler& handler) {
    handler.depends_on(batch->wait_events);
    native_enqueue(handler, [batch, body, views = command_views<sycl::target::device>(batch->uses, handler)](
                                auto& interop) { body(interop, views); });
  });
}

// Submits the command that determines the stream and the addresses of the batch.
inline void begin_native_batch(const std::shared_ptr<native_batch>& batch) {
  std::vector<sycl::event>& wait_events = batch->wait_events;
  for (const collective_request& request : batch->requests) {
    if (const auto previous = request.rank->begin_in_order(batch->queue)) wait_events.push_back(*previous);
    wait_events.insert(wait_events.end(), request.dependencies.begin(), request.dependencies.end());
  }
  order_native_command(batch->queue, wait_events, batch->requests, batch->uses);
  const auto store_arguments = [batch](auto& interop, const auto& views) {
    for (const collective_request& request : batch->requests) {
      const auto find_address = [&](auto native, const erased_operand& operand) {
        return native_address(native, interop, batch->uses, views, request, operand);
      };
      batch->arguments.push_back(find_native_arguments(request, interop, find_address));
    }
    batch->is_ready.store(true, std::memory_order_release);
  };
  if (batch->uses.all().empty())
    submit_native(batch, store_arguments, submit_without_event());
  else
    submit_native(batch, store_arguments, submit_with_event());
  start_commands(batch->queue);
  // The runtime defers the command only if it waits for an unfinished host task.
  if (!batch->is_ready.load(std::memory_order_acquire)) batch->queue.wait();
  wait_events.clear();
}

inline sycl::event end_native_batch(const std::shared_ptr<native_batch>& batch) {
  const sycl::event event = batch->uses.all().empty()
                                ? submit_marker(batch->queue)
                                : submit_native(batch, [](auto&, const auto&) {}, submit_with_event());
  return batch->unordered_queue ? submit_marker_after(*batch->unordered_queue, event) : event;
}

// Runs a group with native commands. This takes three steps, because an event that is recorded before the core
// launches the group would complete too early. First, a native command on each queue obtains the stream and the
// addresses after its dependencies are on the stream. Then the core starts the group. Finally, each queue
// provides an event: with buffers, the event of a second native command, on which later accesses depend.
//
// An out-of-order queue has a stream for each command. Its operations therefore run on an in-order queue of the
// rank, which is correct because only events and buffers order them. A marker on the caller's queue waits for them.
//
// Without buffers, DPC++ must keep no event of these commands. Any thread may release a command of any queue in
// DPC++, and on CUDA, cuEventDestroy waits while another thread copies to pageable memory on the event's device.
// If that copy waits for a collective, and the thread that would start the other rank's part releases the event,
// both wait forever (observed on 2 H200s).
inline std::vector<sycl::event> run_group_native(std::vector<collective_request>& requests) {
  const std::size_t size = requests.size();
  const auto batches = make_native_batches(requests);
  std::vector<std::pair<collective_request*, native_arguments*>> calls(size);  // in call order
  for (const auto& batch : batches) {
    begin_native_batch(batch);
    for (std::size_t i = 0; i < batch->indices.size(); ++i)
      calls[batch->indices[i]] = {&batch->requests[i], &batch->arguments[i]};
  }
  const auto enqueue_calls = [&] {
    for (const auto& [request, arguments] : calls)
      enqueue(*request, arguments->send, arguments->recv, arguments->stream);
  };
  if (calls.front().first->call)
    enqueue_calls();  // alone, because the core has no groups of such calls
  else
    run_core_group(enqueue_calls);
  std::vector<sycl::event> events(size);
  for (const auto& batch : batches) {
    const sycl::event event = end_native_batch(batch);
    for (const std::size_t index : batch->indices) events[index] = event;
  }
  start_commands(batches.front()->queue);
  return events;
}

/// Runs a group on platforms whose stream is the queue. The host waits only for explicit dependencies, the core
/// enqueues the operations, and a marker on each queue provides the event.
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

/// Runs a group on the path of its communicators, which must be all host or all device communicators.
inline std::vector<sycl::event> run_group(std::vector<collective_request>& requests) {
  if (requests.empty()) return {};
  const enqueue_path path = requests.front().rank->path().path;
  const bool is_host = requests.front().rank->native().platform == ISTHMUS_PLATFORM_HOST;
  for (const collective_request& request : requests) {
    if ((request.rank->native().platform == ISTHMUS_PLATFORM_HOST) != is_host) {
      throw request.error(
          ISTHMUS_ERROR_UNSUPPORTED,
          "group: host and device communicators; all communicators of a group must be of one kind",
          "use one group for the host and one for devices");
    }
  }
  if (is_host && runs_in_host_task(requests)) return run_group_in_host_task(std::move(requests));
  if (is_host) return run_group_blocking(requests);
  return path == enqueue_path::native_command ? run_group_native(requests) : run_group_on_streams(requests);
}

}  // namespace detail

/// A scope whose operations start together, on any communicators. With a group, one thread can drive several
/// ranks (communicator::create_all), and send and recv can be paired without deadlock.
/// @code
/// auto ranks = isthmus::communicator::create_all(devices);
/// isthmus::group group;
/// for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].allreduce(queues[r], send[r], recv[r], count);
/// std::vector<sycl::event> done = group.end();
/// @endcode
/// Ordering: no operation starts before end(). The events that calls inside the group return carry no
///   information. end() returns the events of the operations, in call order.
///
/// Blocking: on the host platform, end() returns when all operations are complete. With
///   host_execution::host_task, it returns immediately if all operations use USM, one communicator and one
///   queue. On a device platform, it returns immediately. An out-of-order queue requires native_command.
///
/// Buffers: one buffer may appear in several operations of a group. Destroy the program's host accessors on
///   buffers of the group before end(). Otherwise, end() waits for them forever.
///
/// Errors: if a call throws or an operation is invalid, none of the group starts.
///
/// Thread safety: a group belongs to the thread that created it. Groups can be nested; the outermost end()
///   starts the work.
class group {
 public:
  group() { ++detail::thread_group().depth; }
  group(const group&) = delete;
  group& operator=(const group&) = delete;

  /// Ends the group. The end of the outermost group starts the work.
  /// @return One event per operation of the thread's outermost group, in call order; empty for a nested group.
  /// @throws isthmus::exception The error of the first rejected operation; ISTHMUS_ERROR_UNSUPPORTED if the
  ///   group has both host and device communicators, or an out-of-order queue on a device without
  ///   native commands. In these cases, nothing has started.
  std::vector<sycl::event> end() {
    m_is_ended = true;
    return leave(false);
  }

  /// Ends the group unless end() was called. If an exception leaves the scope, no operation of
  /// the group starts.
  /// @throws isthmus::exception As end().
  ~group() noexcept(false) {
    if (!m_is_ended) leave(std::uncaught_exceptions() > m_exceptions_at_entry);
  }

 private:
  std::vector<sycl::event> leave(bool is_abandoned) {
    detail::group_state& state = detail::thread_group();
    state.is_abandoned |= is_abandoned;
    if (--state.depth > 0) return {};
    std::vector<detail::collective_request> requests = std::move(state.requests);
    const bool was_abandoned = std::exchange(state.is_abandoned, false);
    std::vector<sycl::event> events;
    if (!was_abandoned) events = detail::run_group(requests);
    requests.clear();
    state.requests = std::move(requests);  // the next group of this thread uses the same memory
    return events;
  }

  int m_exceptions_at_entry = std::uncaught_exceptions();  // more at the end: an exception unwinds the scope
  bool m_is_ended = false;
};

}  // namespace isthmus

#endif
