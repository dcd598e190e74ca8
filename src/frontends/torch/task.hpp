// A task describes one torch.distributed call: copies, then Isthmus operations, then copies. A host executor
// runs it in a thread, a device executor enqueues it on a stream, and coalescing concatenates tasks.
#pragma once

#include <ATen/core/Tensor.h>
#include <isthmus/types.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

// target = source, or source * factor if a factor is defined.
struct tensor_copy {
  at::Tensor target, source;
  at::Tensor factor;
};

// An operation that owns its count and displacement arrays.
struct owned_operation {
  isthmus_operation operation{};
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;

  // Returns the operation for isthmus_enqueue. It points into this object, which must not be moved.
  isthmus_operation operation_for(isthmus_stream stream) const {
    isthmus_operation result = operation;
    if (!send_counts.empty()) result.send_counts = send_counts.data(), result.send_displs = send_displs.data();
    if (!recv_counts.empty()) result.recv_counts = recv_counts.data(), result.recv_displs = recv_displs.data();
    result.stream = stream;
    return result;
  }
};

struct collective_task {
  c10d::OpType kind = c10d::OpType::UNKNOWN;
  const char* title = "isthmus";
  bool is_asynchronous = true;
  bool blocks_host = false;  // wait() returns after completion, also on devices (barrier)
  std::optional<std::chrono::milliseconds> timeout;  // of this call; empty: the group's timeout
  std::vector<at::Tensor> inputs;                    // of the caller; kept alive until completion
  std::vector<at::Tensor> outputs;                   // of the caller; value of the future
  std::vector<at::Tensor> scratch;                   // temporary buffers of this task
  std::vector<tensor_copy> copies_in, copies_out;
  std::vector<owned_operation> operations;

  void append(collective_task&& other) {
    const auto append_range = [](auto& all, auto& more) {
      all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    };
    append_range(inputs, other.inputs);
    append_range(outputs, other.outputs);
    append_range(scratch, other.scratch);
    append_range(copies_in, other.copies_in);
    append_range(copies_out, other.copies_out);
    append_range(operations, other.operations);
    blocks_host |= other.blocks_host;
    if (other.timeout) timeout = std::min(timeout.value_or(*other.timeout), *other.timeout);
  }
};

}  // namespace isthmus::torch_backend
