// What an asynchronous call returns.
#pragma once

#include <c10/core/Event.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "device_endpoint.hpp"
#include "task.hpp"

namespace isthmus::torch_backend {

using future_ptr = c10::intrusive_ptr<c10::ivalue::Future>;
using milliseconds = std::chrono::milliseconds;

// Of a host executor: completed by the thread that ran the task.
class host_work final : public c10d::Work {
 public:
  // Takes the task's outputs. `timeout` is the group's, where the task has none of its own.
  host_work(int rank, collective_task& task, std::shared_ptr<device_endpoint> endpoint, milliseconds timeout);

  // Blocks at most `timeout` (none: the task's, else the group's and what the communicator, which has the same,
  // needs to say who is missing). Raises the operation's error; a wait that times out aborts
  // the communicator first, because the operation might still write into the caller's tensors.
  bool wait(milliseconds timeout = kNoTimeout) override;
  void abort() override { m_endpoint->abort(); }
  std::vector<at::Tensor> result() override { return m_outputs; }
  // Made when asked for, as the device's: it costs as much as a small collective.
  future_ptr getFuture() override;

  void complete(std::exception_ptr failure);

 private:
  const std::shared_ptr<device_endpoint> m_endpoint;
  const std::vector<at::Tensor> m_outputs;
  const milliseconds m_timeout;
  future_ptr m_future;               // under mutex_, as what follows
  bool m_has_ended = false;          // futures that are made from here on are settled where they are made
  std::exception_ptr m_failure;  // then
};

// Of a device executor: an event behind the operation. Nothing here blocks the host but a wait with a timeout
// and what says so in its task.
class device_work final : public c10d::Work {
 public:
  // `stream` is the one that ran the task and `done` was recorded on it. The caller's tensors are held until a
  // wait has ordered them, or handed to the allocator's care if there is none.
  device_work(int rank, const collective_task& task, std::shared_ptr<device_endpoint> endpoint, c10::Stream stream,
              std::shared_ptr<c10::Event> completion, milliseconds timeout);
  ~device_work() override;

  bool isCompleted() override { return m_completion->query(); }
  bool isSuccess() const override { return m_completion->query(); }
  // Makes the current stream wait. Raises what the communicator has failed with, if it has.
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

// Several works as one: what coalescing returns where they do not share an executor.
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
