// The paths from a request to the core: the calling thread, a host task, or the native stream.
#ifndef ISTHMUS_SYCL_SUBMIT_HPP
#define ISTHMUS_SYCL_SUBMIT_HPP

#include <atomic>
#include <exception>
#include <isthmus/sycl/views.hpp>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace isthmus::detail {

/// Waits on the host for the wait events of a request.
inline void wait_for_dependencies(collective_request& request) {
  for (sycl::event& dependency : request.dependencies) dependency.wait();
}

/// Waits on the host for all work of an in-order queue that is not empty.
inline void wait_for_queue(sycl::queue& queue) {
  if (queue.is_in_order() && !is_known_idle(queue)) queue.wait();
}

/// Calls the core. All paths call this function with the addresses and the stream that they have determined.
inline void enqueue(collective_request& request, void* send, void* recv, isthmus_stream stream) {
  if (request.call) return check(request.call(request.rank->handle(), stream));
  request.set_count_pointers();
  request.operation.send_buf = send;
  request.operation.recv_buf = recv;
  request.operation.stream = stream;
  check(isthmus_enqueue(request.rank->handle(), &request.operation));
}

// ---- host platform --------------------------------------------------------------------------------------

// Runs the request in the calling thread. The request is complete on return.
inline sycl::event run_blocking(collective_request& request) {
  wait_for_dependencies(request);
  wait_for_queue(request.queue);
  if (request.uses_buffers()) {
    buffer_uses uses;
    uses.add(request);
    const host_views views(uses);
    enqueue(request, views.address(request.send), views.address(request.recv), nullptr);
  } else {
    enqueue(request, request.send.pointer, request.recv.pointer, nullptr);
  }
  return request.rank->complete_event();
}

/// Runs `work` of a host task. A failure is stored for async_error() and rethrown to the runtime, which passes
/// it to the queue's async handler. The communicator can be destroyed only after this function has returned.
template <typename Work>
void run_in_background(rank_state& rank, Work&& work) {
  try {
    work();
  } catch (const exception& failure) {
    rank.record_failure(failure);
    rank.finish_background_work();
    throw;
  }
  rank.finish_background_work();
}

// Submits the request as a host task. On DPC++, the task takes no interop_handle: with an interop_handle and a
// writable accessor, DPC++ 2026.2 crashes when the buffer is destroyed.
inline sycl::event submit_host_task(collective_request&& request) {
  const auto shared_request = std::make_shared<collective_request>(std::move(request));
  buffer_uses uses;
  uses.add(*shared_request);
  const auto submit = [&](const std::optional<sycl::event>& previous) {
    return shared_request->queue.submit([&](sycl::handler& handler) {
      handler.depends_on(shared_request->dependencies);
      if (previous) handler.depends_on(*previous);
      const command_views<host_work_target> views(uses, handler);
      host_work(handler, [shared_request, uses, views] {
        run_in_background(*shared_request->rank, [&] {
          const auto address = [&](const erased_operand& operand) -> void* {
            if (!operand.buffer) return operand.pointer;
            const std::size_t index = uses.index_of(operand);
            return static_cast<unsigned char*>(buffer_address(views.at(index), uses.all()[index].buffer,
                                                              shared_request->rank->device())) +
                   operand.offset_bytes;
          };
          enqueue(*shared_request, shared_request->is_sender() ? address(shared_request->send) : nullptr,
                  shared_request->is_receiver() ? address(shared_request->recv) : nullptr, nullptr);
        });
      });
    });
  };
  return shared_request->rank->submit_in_background(shared_request->queue, submit);
}

// ---- device platforms -----------------------------------------------------------------------------------

/// Throws if the path native_stream does not support the request. Nothing has started then.
inline void require_plain_stream(const collective_request& request) {
  if (request.queue.is_in_order() && !request.uses_buffers()) return;
  throw request.error(ISTHMUS_ERROR_UNSUPPORTED,
                      std::string(request.queue.is_in_order() ? "a sycl::buffer" : "an out-of-order queue") +
                          " on platform " + isthmus_platform_name(request.rank->native().platform) + ": " +
                          request.rank->path().reason,
                      "use USM on an in-order queue");
}

// Returns the native stream of an in-order queue, or the address of the request's copy of the queue if the
// platform's stream is the SYCL queue itself.
inline isthmus_stream direct_stream(collective_request& request) {
  isthmus_stream stream = &request.queue;
  visit_native(request.rank->native().platform,
               [&](auto native) { stream = stream_of(native, request.queue); });
  return stream;
}

/// Runs the request on the native stream. The host waits only for explicit dependencies, because the queue's
/// own work is already on the stream.
inline sycl::event run_on_stream(collective_request& request) {
  require_plain_stream(request);
  for (sycl::event& dependency : request.dependencies) dependency.wait();
  enqueue(request, request.send.pointer, request.recv.pointer, direct_stream(request));
  return submit_marker(request.queue);
}

// The arguments that a native command determines: addresses and its stream.
struct native_arguments {
  void* send = nullptr;             // null: this rank does not send
  void* recv = nullptr;             // null: this rank does not receive
  isthmus_stream stream = nullptr;  // native stream of the queue
};

// Orders the next native command of `queue` after `wait_events` and after earlier accesses to the buffers of the
// requests if the implementation does not do this.
inline void order_native_command(sycl::queue& queue, const std::vector<sycl::event>& wait_events,
                                 std::span<collective_request> requests, const buffer_uses& uses) {
  if constexpr (!has_ordered_native_commands) {
    order_after(queue, wait_events);
    for (collective_request& request : requests) {
      if (request.is_sender() && request.send.migrate)
        order_after_dependencies(queue, request.send.migrate(queue));
      if (request.is_receiver() && request.recv.migrate)
        order_after_dependencies(queue, request.recv.migrate(queue));
    }
    if (uses.all().empty()) return;
    order_after_accesses(
        queue, [&](sycl::handler& handler) { return command_views<sycl::target::device>(uses, handler); });
  }
}

// Returns the address of an operand in a native command with these accessors.
template <typename Native, typename Interop>
void* native_address(Native native, const Interop& interop, const buffer_uses& uses,
                     const command_views<sycl::target::device>& views, const collective_request& request,
                     const erased_operand& operand) {
  if (!operand.buffer) return operand.pointer;
  const std::size_t index = uses.index_of(operand);
  return static_cast<unsigned char*>(buffer_address(native, interop, views.at(index), uses.all()[index].buffer,
                                                    request.rank->device())) +
         operand.offset_bytes;
}

// Returns the arguments of a request in a native command. `find_address(native, operand)` returns an address.
template <typename Interop, typename FindAddress>
native_arguments find_native_arguments(const collective_request& request, const Interop& interop,
                                       const FindAddress& find_address) {
  native_arguments arguments;
  visit_native(request.rank->native().platform, [&](auto native) {
    if (request.is_sender()) arguments.send = find_address(native, request.send);
    if (request.is_receiver()) arguments.recv = find_address(native, request.recv);
    arguments.stream = native.stream(interop);
  });
  return arguments;
}

// Submits `body(request, native_arguments)` as a native command to the request's queue, with all dependencies of
// the request. `uses` contains the buffers of the request. The request must live until the body has run. The
// runtime stores a function that holds only a pointer without an allocation.
template <typename Request, typename Body>
sycl::event submit_native(Request& request, const std::optional<sycl::event>& previous, const buffer_uses& uses,
                          const Body& body) {
  return request.queue.submit([&](sycl::handler& handler) {
    if (!request.dependencies.empty()) handler.depends_on(request.dependencies);
    if (previous) handler.depends_on(*previous);
    if (uses.all().empty()) {  // the fast path: no accessors and no memory for them
      native_enqueue(handler, [pointer = &request, body](auto& interop) {
        body(*pointer, find_native_arguments(*pointer, interop, [](auto, const erased_operand& operand) {
          return operand.pointer;
        }));
      });
      return;
    }
    native_enqueue(handler, [pointer = &request, body, uses,
                             views = command_views<sycl::target::device>(uses, handler)](auto& interop) {
      body(*pointer, find_native_arguments(*pointer, interop, [&](auto native, const erased_operand& operand) {
        return native_address(native, interop, uses, views, *pointer, operand);
      }));
    });
  });
}

// Runs the request as a native command. The runtime may run the body now, or later in another thread (DPC++,
// after an unfinished host task). If a failure is already known, it is thrown here; the rank stores it in any
// case. The handle must live until the body has run.
inline sycl::event run_native(collective_request&& request) {
  struct pending_call : collective_request {
    explicit pending_call(collective_request&& request) : collective_request(std::move(request)) {}
    std::exception_ptr failure;          // not the exception: its 2 kB would make each allocation slow
    std::atomic<bool> is_done = false;   // `failure` is final
    std::shared_ptr<pending_call> self;  // keeps this object alive until the body has run
  };
  const auto call = std::make_shared<pending_call>(std::move(request));
  const auto submit = [&](const std::optional<sycl::event>& previous) {
    collective_request& own_request = *call;
    std::vector<sycl::event> wait_events = own_request.dependencies;
    if (previous) wait_events.push_back(*previous);
    buffer_uses uses;
    uses.add(own_request);
    order_native_command(own_request.queue, wait_events, std::span(&own_request, 1), uses);
    const auto body = [](pending_call& pending, const native_arguments& arguments) {
      const std::shared_ptr<pending_call> owner = std::move(pending.self);
      try {
        enqueue(pending, arguments.send, arguments.recv, arguments.stream);
      } catch (const exception& failure) {
        pending.rank->record_failure(failure);
        pending.failure = std::current_exception();
      }
      pending.is_done.store(true, std::memory_order_release);
      pending.rank->finish_background_work();
    };
    call->self = call;
    try {
      return submit_native(*call, previous, uses, body);
    } catch (...) {  // the body has run, or never will
      call->self.reset();
      throw;
    }
  };
  const sycl::event event = call->rank->submit_in_background(call->queue, submit);
  if (call->is_done.load(std::memory_order_acquire) && call->failure) std::rethrow_exception(call->failure);
  return event;
}

// Defined in group.hpp: determines addresses and streams, then calls the core outside of the SYCL runtime, then
// creates the events.
std::vector<sycl::event> run_group_native(std::vector<collective_request>& requests);

// Runs a request if the process has several ranks. DPC++ runs the body of a native command while it holds a
// lock of its scheduler. There, a vendor library may wait for another rank (NCCL connects during the first
// call). If that rank is a thread of this process and needs the lock, both deadlock (observed on 2 H200s). The
// library is therefore called outside of the command.
inline sycl::event run_native_with_local_ranks(collective_request&& request) {
  std::vector<detail::collective_request> requests;
  requests.push_back(std::move(request));
  return run_group_native(requests).front();
}

// ---- one request ----------------------------------------------------------------------------------------

/// Runs a request outside of a group, on its communicator's path.
inline sycl::event run(collective_request&& request) {
  switch (request.rank->path().path) {
    case enqueue_path::calling_thread: return run_blocking(request);
    case enqueue_path::host_task: return submit_host_task(std::move(request));
    case enqueue_path::native_command:
      return request.rank->local_size() > 1 ? run_native_with_local_ranks(std::move(request))
                                            : run_native(std::move(request));
    case enqueue_path::native_stream: return run_on_stream(request);
  }
  throw request.error(ISTHMUS_ERROR_INTERNAL, "unknown enqueue path", "report this as a bug");
}

}  // namespace isthmus::detail

#endif
