// Where tasks run: one after the other, in the order in which they were submitted.
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
#include "device/watchdog.hpp"
#include "device_endpoint.hpp"
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

  // Runs `build` where the memory that it allocates belongs to the executor's stream.
  virtual collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) = 0;
  // Runs what `build` makes in this thread, if nothing is before it: false if something is. Throws its error.
  virtual bool try_run_inline(c10::function_ref<collective_task()> /*build*/) { return false; }
  // Runs a prepared task. Throws what can be known at once; the work raises the rest.
  virtual work_ptr run(collective_task task) = 0;
  // The streams that tasks would run on now, the caller's own first; none on the host.
  virtual std::vector<c10::Stream> streams() const = 0;
  // Waits for what was submitted, at most the timeout, and releases the communicator.
  virtual void shutdown() noexcept = 0;
  // Ends waits at once, here and on the other ranks.
  void abort() noexcept { m_endpoint->abort(); }

  const std::shared_ptr<device_endpoint>& endpoint() const { return m_endpoint; }

 protected:
  const std::shared_ptr<device_endpoint> m_endpoint;
  const milliseconds m_timeout;
};

// A thread that blocks in the host's collectives. A synchronous call that finds it idle runs in the caller's
// thread, which saves two switches of threads, unless the call has a timeout of its own.
class host_executor final : public task_executor {
 public:
  using task_executor::task_executor;
  ~host_executor() override;

  collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) override;
  bool try_run_inline(c10::function_ref<collective_task()> build) override;
  work_ptr run(collective_task task) override;
  std::vector<c10::Stream> streams() const override { return {}; }
  void shutdown() noexcept override;

 private:
  struct job {
    collective_task task;
    c10::intrusive_ptr<host_work> work;
  };

  bool try_begin_inline();
  void finish() noexcept;
  void loop();
  void perform(const job& each) noexcept;

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<job> m_queue;
  bool m_is_busy = false;  // somebody runs a task
  bool m_is_stopping = false;
  std::thread m_thread;
};

// A stream beside the caller's for asynchronous calls, the caller's own stream for synchronous ones. Written
// against PyTorch's device-independent streams and events, so it needs no vendor's header.
class device_executor final : public task_executor {
 public:
  device_executor(std::shared_ptr<device_endpoint> endpoint, milliseconds timeout, c10::Device device);
  ~device_executor() override;

  collective_task prepare(bool is_asynchronous, c10::function_ref<collective_task()> build) override;
  work_ptr run(collective_task task) override;
  std::vector<c10::Stream> streams() const override { return {stream_for(false), m_async_stream}; }
  void shutdown() noexcept override;

 private:
  c10::Stream stream_for(bool is_asynchronous) const;
  void record_completion(std::shared_ptr<c10::Event> completion);
  void start_watch();
  watched_operation oldest_call();
  void abort_stuck_calls();

  const c10::Device m_device;
  const c10::Stream m_async_stream;
  // Trainers call on several streams. Tasks of one communicator share its signals and staging, and at once they
  // would only share the links: what was called first is as a rule waited for first.
  std::mutex m_order_mutex;                  // held from one task's wait to its event
  std::shared_ptr<c10::Event> m_last_completion;  // behind the task before
  std::mutex m_mutex;                  // of what follows
  completion_events<std::shared_ptr<c10::Event>> m_completions;
  bool m_is_closed = false;
  std::optional<watch> m_watch;  // last: it looks at the others
};

}  // namespace isthmus::torch_backend
