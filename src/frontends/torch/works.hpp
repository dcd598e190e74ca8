// Work objects, which asynchronous calls return.
#pragma once

#include <c10/core/Event.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "device_endpoint.hpp"
#include "tasks.hpp"

namespace isthmus::torch_backend {

using future_ptr = c10::intrusive_ptr<c10::ivalue::Future>;
using milliseconds = std::chrono::milliseconds;

// Work object of a host executor. The thread that runs the task completes it.
class host_work final : public c10d::Work {
 public:
  // Moves the outputs out of the task. `timeout` is the group's timeout, used if the task has no timeout.
  host_work(int rank, collective_task& task, std::shared_ptr<device_endpoint> endpoint, milliseconds timeout);

  // Blocks at most `timeout`. The default is the task's timeout or, if it has none, the group's timeout plus a
  // grace period in which the communicator reports the missing rank.
  // Errors: raises the error of the operation. A wait that times out aborts the communicator first, because the
  // operation could still write into the caller's tensors.
  bool wait(milliseconds timeout = kNoTimeout) override;
  void abort() override { m_endpoint->abort(); }
  std::vector<at::Tensor> result() override { return m_outputs; }
  // Creates the future on request, because it costs as much as a small collective.
  future_ptr getFuture() override;

  void complete(std::exception_ptr failure);

 private:
  const std::shared_ptr<device_endpoint> m_endpoint;
  const std::vector<at::Tensor> m_outputs;
  const milliseconds m_timeout;
  future_ptr m_future;           // guarded by mutex_, like the following members
  bool m_has_ended = false;      // later futures are resolved when they are created
  std::exception_ptr m_failure;  // set before m_has_ended
};

// Work object of a device executor: an event recorded after the operation.
// Blocking: only wait() with a timeout and tasks with `blocks_host` block the host.
class device_work final : public c10d::Work {
 public:
  // `completion` was recorded on `stream`, which ran the task. The caller's tensors are held until the first
  // wait. Without a wait, the destructor makes the allocator protect them until the stream has finished.
  device_work(int rank, const collective_task& task, std::shared_ptr<device_endpoint> endpoint,
              c10::Stream stream, std::shared_ptr<c10::Event> completion, milliseconds timeout);
  ~device_work() override;

  bool isCompleted() override { return m_completion->query(); }
  bool isSuccess() const override { return m_completion->query(); }
  // Makes the current stream wait for the operation. Raises the error of a failed communicator.
  bool wait(milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override { m_endpoint->abort(); }
  std::vector<at::Tensor> result() override { return m_outputs; }
  future_ptr getFuture() override;

 private:
  void wait_on_host(milliseconds timeout);

  const std::shared_ptr<device_endpoint> m_endpoint;
  const c10::Stream m_stream;
  const std::shared_ptr<c10::Event> m_completion;
  const milliseconds m_timeout;
  const bool m_blocks_host;
  std::vector<at::Tensor> m_outputs;
  std::vector<at::Tensor> m_held_tensors;
  future_ptr m_future;
};

// Combines several works into one. Coalescing returns it if the works use different executors.
class joined_work final : public c10d::Work {
 public:
  joined_work(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  future_ptr getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> m_parts;
};

}  // namespace isthmus::torch_backend
