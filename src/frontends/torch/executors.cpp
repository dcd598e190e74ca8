#include "executors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace isthmus::torch_backend {
namespace {

void run_copies(const std::vector<tensor_copy>& copies) {
  for (const tensor_copy& copy : copies) {
    at::Tensor target = copy.target;
    if (copy.factor.defined())
      at::mul_out(target, copy.source, copy.factor);
    else
      target.copy_(copy.source, /*non_blocking=*/true);
  }
}

void run_task(device_endpoint& endpoint, const collective_task& task, isthmus_stream stream) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  run_copies(task.copies_in);
  endpoint.launch(task.operations, stream);
  run_copies(task.copies_out);
}

}  // namespace

// ---- host ---------------------------------------------------------------------------------------------

void host_executor::end() noexcept {
  bool has_pending = false;
  {
    const std::lock_guard lock(m_mutex);
    has_pending = m_is_busy || !m_queue.empty();
  }
  if (has_pending) abort();  // no orderly shutdown was requested, and other ranks may have exited
  shutdown();
}

collective_task host_executor::prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) {
  collective_task task = build();
  task.is_asynchronous = is_asynchronous;
  return task;
}

// Returns whether this thread may run a task now, which requires an idle executor with an empty queue. The
// caller must then call finish().
bool host_executor::try_begin_inline() {
  const std::lock_guard lock(m_mutex);
  if (m_is_busy || !m_queue.empty()) return false;
  m_is_busy = true;
  return true;
}

void host_executor::finish() noexcept {
  const std::lock_guard lock(m_mutex);
  m_is_busy = false;
  m_changed.notify_all();
}

bool host_executor::try_run_inline(c10::function_ref<collective_task()> build) {
  const collective_task task = build();
  if (!try_begin_inline()) return false;
  try {
    run_task(*m_endpoint, task, nullptr);
  } catch (...) {
    finish();
    throw;
  }
  finish();
  return true;
}

work_ptr host_executor::run(collective_task task) {
  // A caller with its own timeout may have to stop waiting before the task ends.
  const bool may_run_inline = !task.is_asynchronous && !task.timeout;
  auto work = c10::make_intrusive<host_work>(m_endpoint->settings().rank, task, m_endpoint, m_timeout);
  queued_task new_job{std::move(task), work};
  if (may_run_inline && try_begin_inline()) {
    perform(new_job);
    finish();
    return work;
  }
  enqueue(std::move(new_job));
  return work;
}

void host_executor::enqueue(queued_task job) {
  const std::lock_guard lock(m_mutex);
  m_queue.push_back(std::move(job));
  if (!m_thread.joinable()) m_thread = std::thread([this] { loop(); });
  m_changed.notify_all();
}

void host_executor::perform(const queued_task& job) noexcept {
  std::exception_ptr failure;
  try {
    run_task(*m_endpoint, job.task, nullptr);
  } catch (...) {
    failure = std::current_exception();
  }
  job.work->complete(failure);
}

void host_executor::loop() {
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [this] { return !m_is_busy && (m_is_stopping || !m_queue.empty()); });
    if (m_queue.empty()) return;
    {
      const queued_task next = std::move(m_queue.front());
      m_queue.pop_front();
      m_is_busy = true;
      lock.unlock();
      perform(next);
    }  // releases the tensors without the lock
    finish();
    lock.lock();
  }
}

void host_executor::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_is_stopping = true;
    m_changed.notify_all();
  }
  if (m_thread.joinable()) m_thread.join();
  m_endpoint->close();
}

// ---- devices ------------------------------------------------------------------------------------------

std::shared_ptr<c10::Event> event_pool::acquire() {
  std::unique_ptr<c10::Event> event;
  {
    const std::lock_guard lock(m_mutex);
    if (!m_free.empty()) {
      event = std::move(m_free.back());
      m_free.pop_back();
    }
  }
  if (!event) event = std::make_unique<c10::Event>(m_type);
  return {event.release(), [pool = shared_from_this()](c10::Event* used) {
            std::unique_ptr<c10::Event> returned(used);
            const std::lock_guard lock(pool->m_mutex);
            pool->m_free.push_back(std::move(returned));
          }};
}

device_executor::device_executor(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout,
                                 c10::Device device)
    : task_executor(std::move(endpoint), timeout),
      m_device(device),
      m_async_stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      m_events(std::make_shared<event_pool>(device.type())) {}

device_executor::~device_executor() { shutdown(); }

c10::Stream device_executor::stream_for(bool is_asynchronous) const {
  return is_asynchronous ? m_async_stream : c10::impl::VirtualGuardImpl(m_device.type()).getStream(m_device);
}

collective_task device_executor::prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) {
  const c10::StreamGuard guard(stream_for(is_asynchronous));
  collective_task task = build();
  task.is_asynchronous = is_asynchronous;
  return task;
}

// An event of a captured graph belongs to the graph and is not used again.
std::shared_ptr<c10::Event> device_executor::make_event(bool is_captured) const {
  return is_captured ? std::make_shared<c10::Event>(m_device.type()) : m_events->acquire();
}

bool device_executor::try_run_inline(c10::function_ref<collective_task()> build) {
  const c10::Stream stream = stream_for(false);
  if (m_endpoint->is_capturing(native_handle(stream))) return false;
  run_on(stream, build(), false);
  m_endpoint->check_health();
  return true;
}

std::shared_ptr<product_plan> device_executor::plan_for(const product_shape& shape) {
  if (auto plan = m_endpoint->find_plan(shape)) return plan;
  TORCH_CHECK(!m_endpoint->is_capturing(native_handle(stream_for(false))), operator_name(shape.kind),
              ": the first call with m = ", shape.m, ", n = ", shape.n, " and k = ", shape.k,
              " is captured into a graph, but it creates a plan; make one such call before the capture");
  const std::lock_guard order_lock(m_order_mutex);
  if (m_last_completion) m_last_completion->synchronize();
  return m_endpoint->create_plan(shape);
}

work_ptr device_executor::run(collective_task task) {
  const c10::Stream caller_stream = stream_for(false);
  const c10::Stream stream = stream_for(task.is_asynchronous);
  const bool is_captured = m_endpoint->is_capturing(native_handle(caller_stream));
  if (stream != caller_stream) {
    const auto ready_event = make_event(is_captured);
    ready_event->record(caller_stream);
    ready_event->block(stream);
  }
  auto completion = run_on(stream, task, is_captured);
  return c10::make_intrusive<device_work>(m_endpoint->settings().rank, task, m_endpoint, stream,
                                          std::move(completion), task.timeout.value_or(m_timeout));
}

// Runs a task on a stream, after the previous task. Returns the event of its completion.
std::shared_ptr<c10::Event> device_executor::run_on(c10::Stream stream, const collective_task& task,
                                                    bool is_captured) {
  const std::lock_guard order_lock(m_order_mutex);
  if (is_captured) m_endpoint->add_captured_call();
  if (m_last_completion && !is_captured && stream != m_last_stream) m_last_completion->block(stream);
  const c10::StreamGuard guard(stream);
  auto completion = make_event(is_captured);
  const auto finish = [&] {
    completion->record(stream);
    if (is_captured) return;
    // A program may destroy any other stream, and a new stream can have the same handle.
    const bool is_permanent = stream == m_async_stream ||
                              stream == c10::impl::VirtualGuardImpl(m_device.type()).getDefaultStream(m_device);
    m_last_stream = is_permanent ? std::optional(stream) : std::nullopt;
    record_completion(completion);
  };
  try {
    run_task(*m_endpoint, task, native_handle(stream));
  } catch (...) {
    try {
      finish();                        // covers operations that started before the failure
    } catch (const std::exception&) {  // the device failed, so there is nothing to wait for
    }
    throw;
  }
  finish();
  return completion;
}

// Must not be called for events of a captured graph, because work outside of the graph cannot wait for them.
void device_executor::record_completion(std::shared_ptr<c10::Event> completion) {
  m_last_completion = completion;
  const std::lock_guard lock(m_mutex);
  m_completions.add(std::move(completion), watchdog_clock::now());
  if (!m_watch && !m_is_closed) start_watch();
}

void device_executor::start_watch() {
  watch_options options;
  options.timeout = m_timeout;
  options.interval = std::chrono::milliseconds(500);
  options.operation = [this] { return oldest_call(); };
  options.has_slow_actions = true;
  options.on_stuck = [this](std::uint64_t) {
    abort_stuck_calls();
    return true;
  };
  m_watch.emplace(std::move(options));
}

// Returns the oldest call that is not known to be complete. Events are queried only after the timeout, because
// a query from another thread would invalidate a graph capture.
watched_operation device_executor::oldest_call() {
  const std::lock_guard lock(m_mutex);
  while (!m_completions.empty() && watchdog_clock::now() - *m_completions.oldest().start_time >= m_timeout) {
    try {
      if (!m_completions.oldest_event()->query()) break;
    } catch (const std::exception&) {
      return {};  // a graph capture in another thread forbids the query; try again later
    }
    m_completions.drop_oldest();
  }
  return m_completions.empty() ? watched_operation{} : m_completions.oldest();
}

void device_executor::abort_stuck_calls() {
  TORCH_WARN("isthmus: an operation of process group ", m_endpoint->settings().group, " on ",
             m_endpoint->settings().device_name, " is not complete after ", m_timeout.count(),
             " ms: aborting its communicator");
  m_endpoint->abort();
  const std::lock_guard lock(m_mutex);
  m_completions.clear();
}

void device_executor::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_is_closed = true;
  }
  m_watch.reset();
  m_endpoint->close();
}

}  // namespace isthmus::torch_backend
