// Executors run the tasks of a process group on one device, one at a time, in the order of submission.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "device/completion_events.hpp"
#include "device_endpoint.hpp"
#include "failure/watchdog.hpp"
#include "works.hpp"

namespace isthmus::torch_backend {

using work_ptr = c10::intrusive_ptr<c10d::Work>;

class task_executor {
 public:
  task_executor(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout)
      : m_endpoint(std::move(endpoint)), m_timeout(timeout) {}
  virtual ~task_executor() = default;
  task_executor(const task_executor&) = delete;
  task_executor& operator=(const task_executor&) = delete;

  // Calls `build` with the executor's stream as the current stream, so that it owns the allocated memory.
  virtual collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) = 0;
  // Builds a task and runs it without a work object: on the host in this thread, if the executor is idle; on a device
  // on the current stream, unless a graph is being captured. Otherwise, returns false. Throws the task's error.
  virtual bool try_run_inline(c10::function_ref<collective_task()> build) = 0;
  // Returns the plan for products of this shape; NULL on the host, where PyTorch computes the products. The first call for
  // a shape is collective, waits for the submitted tasks and throws if a graph is being captured.
  virtual std::shared_ptr<product_plan> plan_for(const product_shape& shape) = 0;
  // Runs a task. Throws errors that are known immediately; the returned work raises later errors.
  virtual work_ptr run(collective_task task) = 0;
  // Returns the streams on which tasks run, the caller's current stream first. Empty on the host.
  virtual std::vector<c10::Stream> streams() const = 0;
  // Waits for the submitted tasks, up to the timeout, and releases the communicator.
  virtual void shutdown() noexcept = 0;
  // Ends all waits immediately, on all ranks.
  void abort() noexcept { m_endpoint->abort(); }

  const std::shared_ptr<device_endpoint>& endpoint() const { return m_endpoint; }

 protected:
  const std::shared_ptr<device_endpoint> m_endpoint;
  const milliseconds m_timeout;
};

// Runs host collectives in a thread. If the executor is idle and the call is synchronous and has no timeout of
// its own, the task runs in the caller's thread, which saves two thread switches.
class host_executor : public task_executor {
 public:
  using task_executor::task_executor;
  ~host_executor() override { end(); }

  collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) override;
  bool try_run_inline(c10::function_ref<collective_task()> build) override;
  std::shared_ptr<product_plan> plan_for(const product_shape& /*shape*/) override { return nullptr; }
  work_ptr run(collective_task task) override;
  std::vector<c10::Stream> streams() const override { return {}; }
  void shutdown() noexcept override;

 protected:
  struct queued_task {
    collective_task task;
    c10::intrusive_ptr<host_work> work;
  };

  void enqueue(queued_task job);
  virtual void perform(const queued_task& job) noexcept;
  // Ends the thread. The destructor of a derived class must call it, because the thread calls perform().
  void end() noexcept;

 private:
  bool try_begin_inline();
  void finish() noexcept;
  void loop();

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<queued_task> m_queue;
  bool m_is_busy = false;  // a thread runs a task
  bool m_is_stopping = false;
  std::thread m_thread;
};

// Events of one type of device that are used again, because creating and destroying an event takes microseconds.
// Thread safety: acquire() may be called from any thread, and the returned pointers may be released in any.
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  explicit event_pool(c10::DeviceType type) : m_type(type) {}
  std::shared_ptr<c10::Event> acquire();

 private:
  const c10::DeviceType m_type;
  std::mutex m_mutex;
  std::vector<std::unique_ptr<c10::Event>> m_free;
};

// Runs asynchronous calls on a separate stream and synchronous calls on the caller's stream. Uses PyTorch's
// generic streams and events, so it does not need vendor headers.
class device_executor final : public task_executor {
 public:
  device_executor(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout, c10::Device device);
  ~device_executor() override;

  collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) override;
  bool try_run_inline(c10::function_ref<collective_task()> build) override;
  std::shared_ptr<product_plan> plan_for(const product_shape& shape) override;
  work_ptr run(collective_task task) override;
  std::vector<c10::Stream> streams() const override { return {stream_for(false), m_async_stream}; }
  void shutdown() noexcept override;

 private:
  c10::Stream stream_for(bool is_asynchronous) const;
  std::shared_ptr<c10::Event> make_event(bool is_captured) const;
  std::shared_ptr<c10::Event> run_on(c10::Stream stream, const collective_task& task, bool is_captured);
  void record_completion(std::shared_ptr<c10::Event> completion);
  void start_watch();
  watched_operation oldest_call();
  void abort_stuck_calls();

  const c10::Device m_device;
  const c10::Stream m_async_stream;
  const std::shared_ptr<event_pool> m_events;
  // Training frameworks use several streams, but the tasks of a communicator share its signals and staging
  // memory, so they must not overlap. Running them concurrently would not help: they would share the links, and
  // programs usually wait for the earliest call first.
  std::mutex m_order_mutex;                       // held from a task's wait to its event
  std::shared_ptr<c10::Event> m_last_completion;  // recorded after the previous task
  std::optional<c10::Stream> m_last_stream;       // of the previous task, if no program can destroy it
  std::mutex m_mutex;                             // guards the following members
  completion_events<std::shared_ptr<c10::Event>> m_completions;
  bool m_is_closed = false;
  std::optional<watch> m_watch;  // last member, because it accesses the other members
};

}  // namespace isthmus::torch_backend
