#include "works.hpp"

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "failure/wait.hpp"

namespace isthmus::torch_backend {
namespace {

using namespace std::chrono_literals;

future_ptr make_future(std::vector<c10::Device> devices = {}) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::move(devices));
}

[[noreturn]] void throw_timeout(const char* operation, milliseconds timeout) {
  C10_THROW_ERROR(
      DistBackendError,
      c10::str(
          "isthmus: Timed out waiting ", timeout.count(), "ms for ", operation,
          "; the communicator was aborted (another rank is late or did not make this call; check the order "
          "of calls on all ranks or increase the timeout)"));
}

// Waits of the communicator end at the group's timeout, and their error names the missing rank. The wait for
// the work starts earlier, so it must last longer to report that error.
milliseconds add_grace_period(milliseconds timeout) { return timeout + timeout / 20 + 1s; }

// Without a profiler, a work needs neither a title nor the inputs that a profiler shows.
const char* title_for_profilers(const collective_task& task) {
  return at::hasCallbacks() ? task.title : nullptr;
}

std::optional<std::vector<at::Tensor>> inputs_for_profilers(const collective_task& task) {
  if (!at::hasCallbacks()) return std::nullopt;
  return task.inputs;
}

void resolve_future(future_ptr& future, const std::exception_ptr& failure,
                    const std::vector<at::Tensor>& outputs) {
  if (failure)
    future->setError(failure);
  else
    future->markCompleted(c10::IValue(outputs));
}

}  // namespace

host_work::host_work(int rank, collective_task& task, std::shared_ptr<device_endpoint> endpoint,
                     milliseconds timeout)
    : Work(rank, task.kind, title_for_profilers(task), inputs_for_profilers(task)),
      m_endpoint(std::move(endpoint)),
      m_outputs(std::move(task.outputs)),
      m_timeout(task.timeout.value_or(add_grace_period(timeout))) {}

bool host_work::wait(milliseconds timeout) {
  if (m_endpoint->is_inherited() && !completed_) throw_inherited(m_endpoint->settings().group);
  const milliseconds limit = timeout == kNoTimeout ? m_timeout : timeout;
  std::unique_lock lock(mutex_);
  if (!cv_.wait_for(lock, limit, [this] { return completed_; })) {
    lock.unlock();
    m_endpoint->abort();
    throw_timeout(c10d::opTypeToString(opType_).c_str(), limit);
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

// Futures are resolved without the lock, because their callbacks may access the work.
future_ptr host_work::getFuture() {
  future_ptr future;
  {
    const std::lock_guard lock(mutex_);
    if (m_future) return m_future;
    future = m_future = make_future();
    if (!m_has_ended) return future;
  }
  resolve_future(future, m_failure, m_outputs);
  return future;
}

void host_work::complete(std::exception_ptr failure) {
  future_ptr future;
  {
    const std::lock_guard lock(mutex_);
    future = m_future;
    m_has_ended = true;
    m_failure = failure;
  }
  finish(failure);
  if (future) resolve_future(future, failure, m_outputs);
}

device_work::device_work(int rank, const collective_task& task, std::shared_ptr<device_endpoint> endpoint,
                         c10::Stream stream, std::shared_ptr<c10::Event> completion, milliseconds timeout)
    : Work(rank, task.kind),
      m_endpoint(std::move(endpoint)),
      m_stream(stream),
      m_completion(std::move(completion)),
      m_timeout(timeout),
      m_blocks_host(task.blocks_host),
      m_outputs(task.outputs) {
  if (!task.is_asynchronous) return;  // the task ran on the caller's stream
  m_held_tensors = task.inputs;
  m_held_tensors.insert(m_held_tensors.end(), task.outputs.begin(), task.outputs.end());
}

device_work::~device_work() {
  if (m_held_tensors.empty()) return;
  try {
    const c10::impl::VirtualGuardImpl guard(m_stream.device_type());
    for (const at::Tensor& tensor : m_held_tensors)
      guard.recordDataPtrOnStream(tensor.storage().data_ptr(), m_stream);
  } catch (const std::exception& failure) {
    TORCH_WARN("isthmus: releasing the tensors of an operation without a wait failed: ", failure.what());
  }
}

bool device_work::wait(milliseconds timeout) {
  m_endpoint->check_health();
  synchronize();
  if (timeout != kNoTimeout)
    wait_on_host(timeout);
  else if (m_blocks_host)
    wait_on_host(m_timeout);
  return true;
}

void device_work::synchronize() {
  const c10::impl::VirtualGuardImpl guard(m_stream.device_type());
  const c10::Stream current = guard.getStream(m_stream.device());
  if (current != m_stream) m_completion->block(current);
  std::vector<at::Tensor> held_tensors;  // released without the lock
  const std::lock_guard lock(mutex_);
  held_tensors.swap(m_held_tensors);
}

void device_work::wait_on_host(milliseconds timeout) {
  if (!poll_until([&] { return m_completion->query(); }, deadline_after(timeout), 20us)) {
    m_endpoint->abort();
    throw_timeout(c10d::opTypeToString(opType_).c_str(), timeout);
  }
  m_endpoint->check_health();
}

// Creates the future on request, because most callers do not use it and it needs additional events. They are
// recorded on the stream that ran the task, so they cannot complete before the task.
future_ptr device_work::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!m_future) {
    m_future = make_future({m_stream.device()});
    const c10::StreamGuard guard(m_stream);
    m_future->markCompleted(c10::IValue(m_outputs));
  }
  return m_future;
}

joined_work::joined_work(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : Work(rank, c10d::OpType::COALESCED), m_parts(std::move(parts)) {}

bool joined_work::isCompleted() {
  return std::all_of(m_parts.begin(), m_parts.end(), [](const auto& part) { return part->isCompleted(); });
}

bool joined_work::isSuccess() const {
  return std::all_of(m_parts.begin(), m_parts.end(), [](const auto& part) { return part->isSuccess(); });
}

bool joined_work::wait(milliseconds timeout) {
  for (const auto& part : m_parts) part->wait(timeout);
  return true;
}

void joined_work::synchronize() {
  for (const auto& part : m_parts) part->synchronize();
}

void joined_work::abort() {
  for (const auto& part : m_parts) part->abort();
}

future_ptr joined_work::getFuture() {
  c10::List<future_ptr> all(c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : m_parts) all.push_back(part->getFuture());
  return c10::collectAll(all);
}

}  // namespace isthmus::torch_backend
