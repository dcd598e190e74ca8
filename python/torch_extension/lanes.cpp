#include "lanes.hpp"

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
    at::Tensor to = each.to;
    if (each.factor.defined())
      at::mul_out(to, each.from, each.factor);
    else
      to.copy_(each.from, /*non_blocking=*/true);
  }
}

void perform_on(endpoint& place, const plan& planned, isthmus_stream stream) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  make_copies(planned.before);
  place.launch(planned.transfers, stream);
  make_copies(planned.after);
}

}  // namespace

// ---- host ---------------------------------------------------------------------------------------------

host_lane::~host_lane() {
  bool pending = false;
  {
    const std::lock_guard lock(m_mutex);
    pending = m_busy || !m_queue.empty();
  }
  if (pending) abort();  // nobody asked for an orderly end, and the other ranks may be gone
  shutdown();
}

plan host_lane::prepare(bool asynchronous, c10::function_ref<plan()> build) {
  plan planned = build();
  planned.asynchronous = asynchronous;
  return planned;
}

work_ptr host_lane::run(plan planned) {
  const bool asynchronous = planned.asynchronous;
  const bool bounded = planned.timeout.has_value();  // the caller may have to stop waiting before the plan ends
  auto work = c10::make_intrusive<host_work>(m_endpoint->where().rank, planned, m_endpoint,
                                             planned.timeout.value_or(m_timeout));
  job mine{std::move(planned), work};
  std::unique_lock lock(m_mutex);
  if (!asynchronous && !bounded && m_queue.empty() && !m_busy) {
    m_busy = true;
    lock.unlock();
    perform(mine);
    lock.lock();
    m_busy = false;
    m_changed.notify_all();
    return work;
  }
  m_queue.push_back(std::move(mine));
  if (!m_thread.joinable()) m_thread = std::thread([this] { loop(); });
  m_changed.notify_all();
  return work;
}

void host_lane::perform(const job& each) noexcept {
  std::exception_ptr failure;
  try {
    perform_on(*m_endpoint, each.planned, nullptr);
  } catch (...) {
    failure = std::current_exception();
  }
  each.work->complete(failure);
}

void host_lane::loop() {
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
    lock.lock();
    m_busy = false;
    m_changed.notify_all();
  }
}

void host_lane::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
    m_changed.notify_all();
  }
  if (m_thread.joinable()) m_thread.join();
  m_endpoint->close();
}

// ---- devices ------------------------------------------------------------------------------------------

device_lane::device_lane(std::shared_ptr<endpoint> place, milliseconds timeout, c10::Device device)
    : lane(std::move(place), timeout),
      m_device(device),
      m_side(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

device_lane::~device_lane() { shutdown(); }

c10::Stream device_lane::stream_for(bool asynchronous) const {
  return asynchronous ? m_side : c10::impl::VirtualGuardImpl(m_device.type()).getStream(m_device);
}

plan device_lane::prepare(bool asynchronous, c10::function_ref<plan()> build) {
  const c10::StreamGuard guard(stream_for(asynchronous));
  plan planned = build();
  planned.asynchronous = asynchronous;
  return planned;
}

work_ptr device_lane::run(plan planned) {
  const c10::impl::VirtualGuardImpl implementation(m_device.type());
  const c10::Stream caller = implementation.getStream(m_device);
  const c10::Stream stream = stream_for(planned.asynchronous);
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
    perform_on(*m_endpoint, planned, stream.native_handle());
  } catch (...) {
    try {
      end();                           // of what was issued before it failed
    } catch (const std::exception&) {  // a device that failed: nothing of it is waited for
    }
    throw;
  }
  end();
  return c10::make_intrusive<device_work>(m_endpoint->where().rank, planned, m_endpoint, stream,
                                          std::move(done), planned.timeout.value_or(m_timeout));
}

// Not for events of a graph: nobody outside of it can wait for them. For the watchdog, a stream that hangs
// hangs from its first stuck operation on, so one event a second tells as much as all of them.
void device_lane::remember(std::shared_ptr<c10::Event> done) {
  m_last = done;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(m_mutex);
  if (!m_samples.empty() && now - m_samples.back().since < std::chrono::seconds(1)) return;
  m_samples.push_back({now, std::move(done)});
  if (!m_watchdog.joinable()) m_watchdog = std::thread([this] { watchdog(); });
}

// Looks at an event only once the timeout is over: queries of other threads would disturb a graph capture.
void device_lane::watchdog() {
  std::unique_lock lock(m_mutex);
  while (!m_changed.wait_for(lock, std::chrono::milliseconds(500), [this] { return m_stop; })) {
    const auto now = std::chrono::steady_clock::now();
    while (!m_samples.empty() && now - m_samples.front().since > m_timeout) {
      bool stuck = false;
      try {
        stuck = !m_samples.front().done->query();
      } catch (const std::exception&) {
        break;  // a thread captures a graph, which forbids the question: later
      }
      m_samples.pop_front();
      if (!stuck) continue;
      TORCH_WARN("isthmus: an operation of group ", m_endpoint->where().group, " on ",
                 m_endpoint->where().device_name, " is not complete after ", m_timeout.count(),
                 " ms: aborting its communicator");
      m_endpoint->abort();
      m_samples.clear();
    }
  }
}

void device_lane::shutdown() noexcept {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
    m_changed.notify_all();
  }
  if (m_watchdog.joinable()) m_watchdog.join();
  m_endpoint->close();
}

}  // namespace isthmus::torch_backend
