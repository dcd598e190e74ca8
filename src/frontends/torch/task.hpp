// What one torch.distributed call does, as data: copies, operations of Isthmus, copies. A host executor runs it
// in a thread, a device executor puts it on a stream, and coalescing concatenates tasks.
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

// to = from, or from * factor where there is one.
struct tensor_copy {
  at::Tensor target, source;
  at::Tensor factor;
};

// One operation with the arrays that it points to.
struct owned_operation {
  isthmus_operation operation{};
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;

  // The operation as isthmus_enqueue takes it; valid as long as the transfer stays where it is.
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
  bool blocks_host = false;  // wait() returns only when it is complete, on devices too (barrier)
  std::optional<std::chrono::milliseconds> timeout;  // of the call; none: the group's
  std::vector<at::Tensor> inputs;                    // of the caller; kept alive until the work is complete
  std::vector<at::Tensor> outputs;                   // of the caller; the value of the future
  std::vector<at::Tensor> scratch;                   // of this task
  std::vector<tensor_copy> before, after;
  std::vector<owned_operation> operations;

  void append(collective_task&& other) {
    const auto move_to = [](auto& all, auto& more) {
      all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    };
    move_to(inputs, other.inputs);
    move_to(outputs, other.outputs);
    move_to(scratch, other.scratch);
    move_to(before, other.before);
    move_to(after, other.after);
    move_to(operations, other.operations);
    blocks_host |= other.blocks_host;
    if (other.timeout) timeout = std::min(timeout.value_or(*other.timeout), *other.timeout);
  }
};

}  // namespace isthmus::torch_backend
