#include "executors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "status.hpp"

namespace isthmus::torch_backend {
namespace {

void make_copies(const std::vector<tensor_copy>& copies) {
  for (const tensor_copy& each : copies) {
    at::Tensor target = each.target;
    if (each.factor.defined())
      at::mul_out(target, each.source, each.factor);
    else
      target.copy_(each.source, /*non_blocking=*/true);
  }
}

void perform_on(device_endpoint& endpoint, const collective_task& task, isthmus_stream stream) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  make_copies(task.before);
  endpoint.launch(task.operations, stream);
  make_copies(task.after);
}

}  // namespace

// ---- host ---------------------------------------------------------------------------------------------

host_executor::~host_executor() {
  bool pending = false;
  {
    const std::lock_guard lock(m_mutex);
    pending = m_busy || !m_queue.empty();
  }
  if (pending) abort();  // nobody asked for an orderly end, and the other ranks may be gone
  shutdown();
}

collective_task host_executor::prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) {
  collective_task task = build();
  task.is_asynchronous = is_asynchronous;
  return task;
}

// Whether this thread may run a task now: nobody does, and none is before it. Then end() follows.
bool host_executor::begin_here() {
  const std::lock_guard lock(m_mutex);
  if (m_busy || !m_queue.empty()) return false;
  m_busy = true;
  return true;
}

void host_executor::end() noexcept {
  const std::lock_guard lock(m_mutex);
  m_busy = false;
  m_changed.notify_all();
}

bool host_executor::run_here(c10::function_ref<collective_task()> build) {
  const collective_task task = build();
  if (!begin_here()) return false;
  try {
    perform_on(*m_endpoint, task, nullptr);
  } catch (...) {
    end();
    throw;
  }
  end();
  return true;
}

work_ptr host_executor::run(collective_task task) {
  // With a timeout of its own the caller may have to stop waiting before the task ends.
  const bool may_run_here = !task.is_asynchronous && !task.timeout;
  auto work = c10::make_intrusive<host_work>(m_endpoint->settings().rank, task, m_endpoint, m_timeout);
  job mine{std::move(task), work};
  if (may_run_here && begin_here()) {
    perform(mine);
    end();
    return work;
  }
  const std::lock_guard lock(m_mutex);
  m_queue.push_back(std::move(mine));
  if (!m_thread.joinable()) m_thread = std::thread([this] { loop(); });
  m_changed.notify_all();
  return work;
}

void host_executor::perform(const job& each) noexcept {
  std::exception_ptr failure;
  try {
    perform_on(*m_endpoint, each.task, nullptr);
  } catch (...) {
    failure = std::current_exception();
  }
  each.work->complete(failure);
}

void host_executor::loop() {
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [this] { return !m_busy && (m_stop || !m_queue.empty()); });
    if (m_queue.empty()) return;
    {
      const job next = std::move(m_queue.front());
      m_queue.pop_front();
      m_busy = true;
      lock.unlock();
      perform(next);
    }  // its tensors go outside of the lock
    end();
    lock.lock();
  }
}

void host_executor::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
    m_changed.notify_all();
  }
  if (m_thread.joinable()) m_thread.join();
  m_endpoint->close();
}

// ---- devices ------------------------------------------------------------------------------------------

device_executor::device_executor(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout, c10::Device device)
    : executor(std::move(endpoint), timeout),
      m_device(device),
      m_side(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

device_executor::~device_executor() { shutdown(); }

c10::Stream device_executor::stream_for(bool is_asynchronous) const {
  return is_asynchronous ? m_side : c10::impl::VirtualGuardImpl(m_device.type()).getStream(m_device);
}

collective_task device_executor::prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) {
  const c10::StreamGuard guard(stream_for(is_asynchronous));
  collective_task task = build();
  task.is_asynchronous = is_asynchronous;
  return task;
}

work_ptr device_executor::run(collective_task task) {
  const c10::impl::VirtualGuardImpl implementation(m_device.type());
  const c10::Stream caller = implementation.getStream(m_device);
  const c10::Stream stream = stream_for(task.is_asynchronous);
  if (stream != caller) {
    c10::Event ready(m_device.type());
    ready.record(caller);
    ready.block(stream);
  }
  const std::lock_guard in_order(m_order);
  const bool captured = m_endpoint->is_capturing(stream.native_handle());
  if (m_last && !captured) m_last->block(stream);
  const c10::StreamGuard guard(stream);
  auto done = std::make_shared<c10::Event>(m_device.type());
  const auto end = [&] {
    done->record(stream);
    if (!captured) remember(done);
  };
  try {
    perform_on(*m_endpoint, task, stream.native_handle());
  } catch (...) {
    try {
      end();                           // of what was issued before it failed
    } catch (const std::exception&) {  // a device that failed: nothing of it is waited for
    }
    throw;
  }
  end();
  return c10::make_intrusive<device_work>(m_endpoint->settings().rank, task, m_endpoint, stream,
                                          std::move(done), task.timeout.value_or(m_timeout));
}

// Not for events of a graph: nobody outside of it can wait for them.
void device_executor::remember(std::shared_ptr<c10::Event> done) {
  m_last = done;
  const std::lock_guard lock(m_mutex);
  m_ends.add(std::move(done), watchdog_clock::now());
  if (!m_watch && !m_closed) start_watch();
}

void device_executor::start_watch() {
  watch_options rules;
  rules.timeout = m_timeout;
  rules.interval = std::chrono::milliseconds(500);
  rules.operation = [this] { return oldest_call(); };
  rules.has_slow_actions = true;
  rules.on_stuck = [this](std::uint64_t) {
    abort_stuck_calls();
    return true;
  };
  m_watch.emplace(std::move(rules));
}

// The oldest call that has not ended, as far as is known: an event is asked only once the timeout is over,
// because queries of other threads would disturb a graph capture.
watched_operation device_executor::oldest_call() {
  const std::lock_guard lock(m_mutex);
  while (!m_ends.empty() && watchdog_clock::now() - *m_ends.oldest().since >= m_timeout) {
    try {
      if (!m_ends.oldest_event()->query()) break;
    } catch (const std::exception&) {
      return {};  // a thread captures a graph, which forbids the question: later
    }
    m_ends.drop_oldest();
  }
  return m_ends.empty() ? watched_operation{} : m_ends.oldest();
}

void device_executor::abort_stuck_calls() {
  TORCH_WARN("isthmus: an operation of group ", m_endpoint->settings().group, " on ",
             m_endpoint->settings().device_name, " is not complete after ", m_timeout.count(),
             " ms: aborting its communicator");
  m_endpoint->abort();
  const std::lock_guard lock(m_mutex);
  m_ends.clear();
}

void device_executor::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_closed = true;
  }
  m_watch.reset();
  m_endpoint->close();
}

}  // namespace isthmus::torch_backend
