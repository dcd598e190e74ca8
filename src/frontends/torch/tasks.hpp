// Tasks: the torch.distributed calls as copies and Isthmus operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <isthmus/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "product_plans.hpp"

namespace isthmus::torch_backend {

// ---- dtypes and reductions ----

// Element type of a transfer. One PyTorch element is `per_element` elements of `type`.
struct wire_type {
  isthmus_datatype type;
  std::uint64_t per_element;
};

// Returns the datatype with the same arithmetic, if there is one.
std::optional<isthmus_datatype> matching_datatype(at::ScalarType type);

// Returns the element type for data movement collectives. Types that Isthmus does not have are moved as bytes.
wire_type movement_type(at::ScalarType type);

struct reduction_mapping {
  wire_type wire;
  isthmus_reduction_op op;
};

// Returns the mapping of a reduction, or nothing with a reason if Isthmus does not support it. bool values are
// reduced as bytes 0 and 1 (sum: or, product: and), complex numbers as two real numbers if the result is the
// same. PREMUL_SUM is mapped to sum; the caller must multiply by the factor.
std::optional<reduction_mapping> find_reduction(at::ScalarType type, const c10d::ReduceOp& op,
                                                const char*& reason);

// ---- tasks ----

// A task describes one torch.distributed call: copies, then Isthmus operations, then copies. A host executor
// runs it in a thread, a device executor enqueues it on a stream, and coalescing concatenates tasks.

// target = source, or source * factor if a factor is defined.
struct tensor_copy {
  at::Tensor target, source;
  at::Tensor factor;
};

// A run of a plan of isthmus/fused.h.
struct planned_product {
  std::shared_ptr<product_plan> plan;
  isthmus_fused_arguments arguments{};  // without the stream
};

// An operation that owns its count and displacement arrays.
struct owned_operation {
  isthmus_operation operation{};
  std::vector<std::uint64_t> send_counts, send_displs, recv_counts, recv_displs;
  std::optional<isthmus_rmsnorm> rmsnorm;       // makes an allreduce a call of isthmus_allreduce_rmsnorm
  std::optional<isthmus_product> product;       // the contribution to an allreduce
  std::optional<planned_product> planned;       // replaces the operation
  bool is_reported = true;                      // counts as a call in report()
  std::optional<std::uint64_t> reported_bytes;  // empty: the size of the operation

  // Returns the operation for device_endpoint::launch. It points into this object, which must not be moved.
  isthmus_operation operation_for(isthmus_stream stream) const {
    isthmus_operation result = operation;
    if (!send_counts.empty()) result.send_counts = send_counts.data(), result.send_displs = send_displs.data();
    if (!recv_counts.empty()) result.recv_counts = recv_counts.data(), result.recv_displs = recv_displs.data();
    if (rmsnorm) result.rmsnorm = &*rmsnorm;
    if (product) result.product = &*product;
    result.stream = stream;
    return result;
  }
};

struct collective_task {
  c10d::OpType kind = c10d::OpType::UNKNOWN;
  const char* title = "isthmus";
  bool is_asynchronous = true;
  int tag = 0;               // of a message on the host
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

// ---- messages on the host ----

// First part of a message on the host: its description and, if the data fits, the data. Otherwise, the data follows as
// a second operation.
struct message_packet {
  static constexpr std::size_t data_bytes = 480;

  std::int64_t tag;
  std::uint64_t bytes;
  std::int32_t type;  // at::ScalarType
  std::int32_t reserved[3];
  std::byte data[data_bytes];
};
static_assert(offsetof(message_packet, data) % 16 == 0, "the data of all types must be aligned");

// ---- construction ----
//
// Functions that create the task of each call from its tensors. They check the shapes. All calls send and store the
// elements in row-major order, whatever the strides: other tensors get scratch memory with copies in or out.
// Errors: c10::ValueError with the call, the tensor and the rule.

namespace tasks {

using tensors = std::vector<at::Tensor>;

// Rank and size of the calling process in its group.
struct rank_position {
  int rank, size;
};

// A reduction and its factor, which is defined only for PREMUL_SUM. Inputs are multiplied by it
// before the reduction.
struct scaled_reduction {
  reduction_mapping mapping;
  at::Tensor factor;
};

// Returns whether the elements are in the tensor's memory in row-major order, without gaps and lazy operations.
bool is_row_major(const at::Tensor& tensor);

// Checks that the tensor is not sparse.
void check_dense(const char* call, const at::Tensor& tensor);

// Checks that every element of the tensor has its own memory. An expanded tensor does not.
void check_writable(const char* call, const at::Tensor& tensor);

collective_task broadcast(const rank_position& self, const at::Tensor& data, int root);
collective_task allreduce(const at::Tensor& data, const scaled_reduction& reduction);
// Contiguous tensors of isthmus/allreduce_rmsnorm.h. Undefined: no such tensor.
struct rmsnorm_tensors {
  at::Tensor input, residual, weight, residual_out, normalized, scale, scales;
};
collective_task allreduce_rmsnorm(const rmsnorm_tensors& tensors, double eps, bool round_before_weight);
// An allreduce into a contiguous `output` of the products of a matrix and a transposed weight. Empty if the types of the
// tensors do not allow it, or if is_supported() rejects the operation.
std::optional<collective_task> matmul_allreduce(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output,
    const std::function<bool(const owned_operation&)>& is_supported);
// Matrices of an operator of isthmus/fused.h. The weight is [n, k], as in torch.nn.Linear.
struct product_matrices {
  at::Tensor input, weight, output;  // contiguous, except the weight
  at::Tensor gathered;               // undefined: not requested
};
product_shape shape_of(isthmus_fused_kind kind, const product_matrices& matrices);
// The size of this rank's block, for report().
std::uint64_t transferred_bytes(isthmus_fused_kind kind, const product_matrices& matrices);
// A run of a plan for the shape of these matrices.
collective_task fused_product(const product_matrices& matrices, std::shared_ptr<product_plan> plan);
collective_task reduce(const rank_position& self, const at::Tensor& data, int root,
                       const scaled_reduction& reduction);
// Outputs may have different sizes if all ranks pass the same sizes.
collective_task allgather(const rank_position& self, const tensors& outputs, const at::Tensor& input);
collective_task allgather_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input);
// `outputs` must be empty on all ranks except the root.
collective_task gather(const rank_position& self, const tensors& outputs, const at::Tensor& input, int root);
collective_task scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs, int root);
collective_task reduce_scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs,
                               const scaled_reduction& reduction);
collective_task reduce_scatter_base(const rank_position& self, const at::Tensor& output,
                                    const at::Tensor& input, const scaled_reduction& reduction);
collective_task alltoall(const rank_position& self, const tensors& outputs, const tensors& inputs);
// Splits are counts along the first dimension; empty means equal parts.
collective_task alltoall_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input,
                              const std::vector<int64_t>& output_splits,
                              const std::vector<int64_t>& input_splits);
// A message on a device. The peer passes the same number of elements, and tags do not exist.
collective_task message(const at::Tensor& data, isthmus_collective collective, int peer);
// Messages on the host, with a tag. message_receiver runs the receiver's task.
collective_task host_send(const at::Tensor& data, int tag);
collective_task host_receive(const at::Tensor& data, int tag);
collective_task barrier();

}  // namespace tasks
}  // namespace isthmus::torch_backend
