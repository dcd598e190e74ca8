#include "tasks.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <numeric>

namespace isthmus::torch_backend {
namespace {

using reduction_kind = c10d::ReduceOp::RedOpType;

std::optional<isthmus_reduction_op> plain_op(reduction_kind op) {
  switch (op) {
    case reduction_kind::SUM:
    case reduction_kind::PREMUL_SUM: return ISTHMUS_SUM;
    case reduction_kind::AVG: return ISTHMUS_AVG;
    case reduction_kind::PRODUCT: return ISTHMUS_PROD;
    case reduction_kind::MIN: return ISTHMUS_MIN;
    case reduction_kind::MAX: return ISTHMUS_MAX;
    case reduction_kind::BAND:
    case reduction_kind::BOR:
    case reduction_kind::BXOR:
    case reduction_kind::UNUSED: return std::nullopt;
  }
  return std::nullopt;
}

// Returns the equivalent reduction for bool values stored as bytes 0 and 1.
std::optional<isthmus_reduction_op> bool_op(reduction_kind op) {
  switch (op) {
    case reduction_kind::SUM:
    case reduction_kind::MAX:
    case reduction_kind::BOR: return ISTHMUS_MAX;
    case reduction_kind::PRODUCT:
    case reduction_kind::MIN:
    case reduction_kind::BAND: return ISTHMUS_MIN;
    case reduction_kind::AVG:
    case reduction_kind::BXOR:
    case reduction_kind::PREMUL_SUM:
    case reduction_kind::UNUSED: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<isthmus_datatype> matching_datatype(at::ScalarType type) {
  switch (type) {
    case at::kChar: return ISTHMUS_INT8;
    case at::kShort: return ISTHMUS_INT16;
    case at::kInt: return ISTHMUS_INT32;
    case at::kLong: return ISTHMUS_INT64;
    case at::kByte: return ISTHMUS_UINT8;
    case at::kUInt16: return ISTHMUS_UINT16;
    case at::kUInt32: return ISTHMUS_UINT32;
    case at::kUInt64: return ISTHMUS_UINT64;
    case at::kHalf: return ISTHMUS_FLOAT16;
    case at::kBFloat16: return ISTHMUS_BFLOAT16;
    case at::kFloat: return ISTHMUS_FLOAT32;
    case at::kDouble: return ISTHMUS_FLOAT64;
    case at::kFloat8_e4m3fn: return ISTHMUS_FLOAT8_E4M3;
    case at::kFloat8_e5m2: return ISTHMUS_FLOAT8_E5M2;
    default:  // bool, complex, quantized and sub-byte types, and types of later PyTorch versions
      return std::nullopt;
  }
}

wire_type movement_type(at::ScalarType type) {
  if (const auto match = matching_datatype(type)) return {*match, 1};
  return {ISTHMUS_UINT8, c10::elementSize(type)};
}

std::optional<reduction_mapping> find_reduction(at::ScalarType type, const c10d::ReduceOp& op,
                                                const char*& reason) {
  const reduction_kind kind = op;
  if (type == at::kBool) {
    reason = "Isthmus does not support this reduction of bool values";
    const auto op_mapping = bool_op(kind);
    return op_mapping ? std::optional(reduction_mapping{{ISTHMUS_UINT8, 1}, *op_mapping}) : std::nullopt;
  }
  std::uint64_t per_element = 1;
  if (c10::isComplexType(type)) {
    reason = "Isthmus supports only reductions of complex numbers that apply to both parts separately";
    if (kind != reduction_kind::SUM && kind != reduction_kind::AVG && kind != reduction_kind::PREMUL_SUM)
      return std::nullopt;
    type = c10::toRealValueType(type);
    per_element = 2;
  }
  const auto op_mapping = plain_op(kind);
  reason = "Isthmus has no bitwise reductions";
  if (!op_mapping) return std::nullopt;
  const auto match = matching_datatype(type);
  reason = "Isthmus does not support reductions of this dtype";
  return match ? std::optional(reduction_mapping{{*match, per_element}, *op_mapping}) : std::nullopt;
}

namespace tasks {
namespace {

using c10d::OpType;

std::uint64_t elements(const at::Tensor& tensor) { return static_cast<std::uint64_t>(tensor.numel()); }

isthmus_operation movement_operation(isthmus_collective collective, at::ScalarType type, std::uint64_t count) {
  const wire_type wire = movement_type(type);
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = wire.type;
  operation.count = count * wire.per_element;
  return operation;
}

isthmus_operation reduction_operation(isthmus_collective collective, const scaled_reduction& reduction,
                                      std::uint64_t count) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = reduction.mapping.wire.type;
  operation.op = reduction.mapping.op;
  operation.count = count * reduction.mapping.wire.per_element;
  return operation;
}

void check_same_type(const char* call, const at::Tensor& tensor, const at::Tensor& reference) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == reference.scalar_type(), call, ": tensors have dtypes ",
                    tensor.scalar_type(), " and ", reference.scalar_type(), "; all must have the same dtype");
  TORCH_CHECK_VALUE(tensor.device() == reference.device(), call, ": tensors are on ", tensor.device().str(),
                    " and ", reference.device().str(), "; all must be on the same device");
}

void check_list(const char* call, const tensors& list, std::size_t size, const at::Tensor& reference) {
  TORCH_CHECK_VALUE(list.size() == size, call, ": a list has ", list.size(),
                    " tensors; it must have one for each of ", size, " ranks");
  for (const at::Tensor& tensor : list) {
    check_dense(call, tensor);
    check_same_type(call, tensor, reference);
  }
}

at::Tensor add_scratch(collective_task& task, at::IntArrayRef sizes, const at::Tensor& like) {
  return task.scratch.emplace_back(at::empty(sizes, like.options().memory_format(std::nullopt)));
}

// Returns memory with the elements of an input in row-major order: the tensor's own memory if possible.
const void* input_buffer(collective_task& task, const at::Tensor& input) {
  if (is_row_major(input)) return input.const_data_ptr();
  const at::Tensor scratch = add_scratch(task, input.sizes(), input);
  task.copies_in.push_back({scratch, input, {}});
  return scratch.const_data_ptr();
}

// Returns memory for the elements of an output in row-major order: the tensor's own memory if possible.
void* output_buffer(collective_task& task, const char* call, const at::Tensor& output) {
  if (is_row_major(output)) return output.data_ptr();
  check_writable(call, output);
  const at::Tensor scratch = add_scratch(task, output.sizes(), output);
  task.copies_out.push_back({output, scratch, {}});
  return scratch.data_ptr();
}

// Returns whether the tensors are in row-major order in memory, one after another.
bool is_consecutive(const tensors& list) {
  if (!std::all_of(list.begin(), list.end(), is_row_major)) return false;
  const auto* expected = static_cast<const char*>(list.front().const_data_ptr());
  for (const at::Tensor& tensor : list) {
    if (tensor.const_data_ptr() != expected && tensor.numel() > 0) return false;
    expected += tensor.nbytes();
  }
  return true;
}

bool has_equal_sizes(const tensors& list, const at::Tensor& reference) {
  return std::all_of(list.begin(), list.end(),
                     [&](const auto& tensor) { return tensor.numel() == reference.numel(); });
}

std::vector<std::uint64_t> element_counts(const tensors& list, std::uint64_t per_element) {
  std::vector<std::uint64_t> counts;
  for (const at::Tensor& tensor : list) counts.push_back(elements(tensor) * per_element);
  return counts;
}

std::vector<std::uint64_t> displacements_of(const std::vector<std::uint64_t>& counts) {
  std::vector<std::uint64_t> displacements(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), displacements.begin(), std::uint64_t{0});
  return displacements;
}

// Splits new scratch memory into parts of the list's sizes.
tensors scratch_parts(collective_task& task, const tensors& list) {
  int64_t total = 0;
  for (const at::Tensor& tensor : list) total += tensor.numel();
  const at::Tensor scratch = add_scratch(task, {total}, list.front());
  tensors parts;
  int64_t start = 0;
  for (const at::Tensor& tensor : list) {
    const at::Tensor part = scratch.narrow(0, start, tensor.numel());
    parts.push_back(tensor.dim() == 1 ? part : part.view(tensor.sizes()));
    start += tensor.numel();
  }
  return parts;
}

// Like input_buffer and output_buffer, for a list whose elements must be consecutive.
const void* input_buffer(collective_task& task, const tensors& list) {
  if (is_consecutive(list)) return list.front().const_data_ptr();
  const tensors parts = scratch_parts(task, list);
  for (std::size_t index = 0; index < list.size(); ++index)
    task.copies_in.push_back({parts[index], list[index], {}});
  return parts.front().const_data_ptr();
}

void* output_buffer(collective_task& task, const char* call, const tensors& list) {
  if (is_consecutive(list)) return list.front().data_ptr();
  for (const at::Tensor& tensor : list) check_writable(call, tensor);
  const tensors parts = scratch_parts(task, list);
  for (std::size_t index = 0; index < list.size(); ++index)
    task.copies_out.push_back({list[index], parts[index], {}});
  return parts.front().data_ptr();
}

// Returns the input of a reduction, multiplied by the factor if there is one.
at::Tensor reduced_input(collective_task& task, const at::Tensor& input, const scaled_reduction& reduction) {
  if (!reduction.factor.defined()) return input;
  const at::Tensor scaled = add_scratch(task, input.sizes(), input);
  task.copies_in.push_back({scaled, input, reduction.factor});
  return scaled;
}

tensors reduced_inputs(collective_task& task, const tensors& inputs, const scaled_reduction& reduction) {
  tensors scaled_inputs;
  for (const at::Tensor& input : inputs) scaled_inputs.push_back(reduced_input(task, input, reduction));
  return scaled_inputs;
}

// Returns whether a matrix is dense and has contiguous columns.
bool has_row_major_transpose(const at::Tensor& matrix) {
  return !is_row_major(matrix) && is_row_major(matrix.t());
}

collective_task make_task(OpType kind, const char* title, tensors inputs, tensors outputs) {
  collective_task task;
  task.kind = kind;
  task.title = title;
  task.inputs = std::move(inputs);
  task.outputs = std::move(outputs);
  return task;
}

void add_operation(collective_task& task, const isthmus_operation& operation) {
  task.operations.emplace_back().operation = operation;
}

collective_task make_send(const at::Tensor& data) {
  check_dense("send", data);
  return make_task(OpType::SEND, "isthmus:send", {data}, {data});
}

collective_task make_receive(const at::Tensor& data) {
  check_dense("recv", data);
  return make_task(OpType::RECV, "isthmus:recv", {data}, {data});
}

struct rooted_call_names {
  const char *call, *tensor, *list;
};

// Checks the tensors of gather or scatter, where the root has a list with one tensor per rank, and returns the operation
// without buffers.
isthmus_operation rooted_movement(const rank_position& self, isthmus_collective collective,
                                  const rooted_call_names& names, const at::Tensor& tensor, const tensors& list,
                                  int root) {
  check_dense(names.call, tensor);
  if (self.rank == root) {
    check_list(names.call, list, static_cast<std::size_t>(self.size), tensor);
    TORCH_CHECK_VALUE(has_equal_sizes(list, tensor), names.call, ": all ", names.list, " must have the ",
                      names.tensor, "'s ", tensor.numel(), " elements");
  } else {
    TORCH_CHECK_VALUE(list.empty(), names.call, ": rank ", self.rank, " is not the root and must pass no ",
                      names.list);
  }
  isthmus_operation operation = movement_operation(collective, tensor.scalar_type(), elements(tensor));
  operation.root = root;
  return operation;
}

}  // namespace

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

void check_dense(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, call, ": a tensor has layout ", tensor.layout(),
                    "; it must be dense (strided)");
}

void check_writable(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes && !tensor._is_zerotensor(), call,
                    ": a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                    " receives data, but several of its elements share memory; call .clone() first");
}

collective_task broadcast(const rank_position& self, const at::Tensor& data, int root) {
  check_dense("broadcast", data);
  collective_task task = make_task(OpType::BROADCAST, "isthmus:broadcast", {data}, {data});
  isthmus_operation operation = movement_operation(ISTHMUS_BROADCAST, data.scalar_type(), elements(data));
  operation.root = root;
  if (self.rank == root)
    operation.send_buf = operation.recv_buf = const_cast<void*>(input_buffer(task, data));
  else
    operation.send_buf = operation.recv_buf = output_buffer(task, "broadcast", data);
  add_operation(task, operation);
  return task;
}

collective_task allreduce(const at::Tensor& data, const scaled_reduction& reduction) {
  check_dense("all_reduce", data);
  collective_task task = make_task(OpType::ALLREDUCE, "isthmus:all_reduce", {data}, {data});
  isthmus_operation operation = reduction_operation(ISTHMUS_ALLREDUCE, reduction, elements(data));
  operation.send_buf = input_buffer(task, reduced_input(task, data, reduction));
  operation.recv_buf = output_buffer(task, "all_reduce", data);
  add_operation(task, operation);
  return task;
}

collective_task allreduce_rmsnorm(const rmsnorm_tensors& tensors, double eps, bool round_before_weight) {
  const auto type = matching_datatype(tensors.input.scalar_type());
  const auto output = matching_datatype(tensors.normalized.scalar_type());
  TORCH_CHECK_VALUE(type && output, "allreduce_rmsnorm: input and normalized have dtypes ",
                    tensors.input.scalar_type(), " and ", tensors.normalized.scalar_type(),
                    "; they must be float16, bfloat16, float32 or float8_e4m3fn");
  isthmus_rmsnorm norm{};
  norm.hidden = elements(tensors.weight);
  norm.residual = tensors.residual.const_data_ptr();
  norm.weight = tensors.weight.const_data_ptr();
  norm.normalized = tensors.normalized.data_ptr();
  norm.output = *output;
  if (tensors.scale.defined()) norm.scale = tensors.scale.const_data_ptr<float>();
  if (tensors.scales.defined()) norm.scales = tensors.scales.data_ptr<float>();
  norm.eps = static_cast<float>(eps);
  norm.round_before_weight = round_before_weight ? 1 : 0;
  owned_operation each;
  each.operation.collective = ISTHMUS_ALLREDUCE;
  each.operation.datatype = *type;
  each.operation.count = elements(tensors.input);
  each.operation.send_buf = tensors.input.const_data_ptr();
  each.operation.recv_buf = tensors.residual_out.data_ptr();
  each.rmsnorm = norm;
  collective_task task;
  task.kind = OpType::ALLREDUCE;
  task.title = "isthmus:allreduce_rmsnorm";
  task.inputs = {tensors.input, tensors.residual, tensors.weight};
  if (tensors.scale.defined()) task.inputs.push_back(tensors.scale);
  task.outputs = {tensors.residual_out, tensors.normalized};
  if (tensors.scales.defined()) task.outputs.push_back(tensors.scales);
  task.operations.push_back(std::move(each));
  return task;
}

std::optional<collective_task> matmul_allreduce(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output,
    const std::function<bool(const owned_operation&)>& is_supported) {
  const auto type = matching_datatype(input.scalar_type());
  if (type != ISTHMUS_FLOAT16 && type != ISTHMUS_BFLOAT16) return std::nullopt;
  const bool has_rows = weight.stride(1) == 1 && weight.stride(0) >= weight.size(1);
  isthmus_product product{};
  product.rows = static_cast<std::uint64_t>(input.size(0));
  product.columns = static_cast<std::uint64_t>(weight.size(0));
  product.inner = product.lda = static_cast<std::uint64_t>(input.size(1));
  product.ldb = static_cast<std::uint64_t>(has_rows ? weight.stride(0) : weight.size(1));
  product.a = input.const_data_ptr();
  product.b = weight.const_data_ptr();
  product.alpha = 1;
  owned_operation each;
  each.operation.collective = ISTHMUS_ALLREDUCE;
  each.operation.datatype = *type;
  each.operation.op = ISTHMUS_SUM;
  each.operation.count = elements(output);
  each.operation.send_buf = each.operation.recv_buf = output.data_ptr();
  each.product = product;
  if (!is_supported(each)) return std::nullopt;  // before memory for copies is allocated
  collective_task task = make_task(OpType::ALLREDUCE, "isthmus:matmul_allreduce", {input, weight}, {output});
  each.product->a = input_buffer(task, input);
  if (!has_rows) each.product->b = input_buffer(task, weight);
  task.operations.push_back(std::move(each));
  return task;
}

product_shape shape_of(isthmus_fused_kind kind, const product_matrices& matrices) {
  const auto type = matching_datatype(matrices.input.scalar_type());
  TORCH_CHECK_VALUE(type, operator_name(kind), ": input has dtype ", matrices.input.scalar_type(),
                    "; it must be float16, bfloat16 or float32");
  const bool is_gather = kind == ISTHMUS_FUSED_ALLGATHER_GEMM;
  const auto size_of = [](const at::Tensor& tensor, int64_t dimension) {
    return static_cast<std::uint64_t>(tensor.size(dimension));
  };
  return {kind,
          *type,
          has_row_major_transpose(matrices.weight) ? ISTHMUS_ROW_MAJOR : ISTHMUS_COLUMN_MAJOR,
          size_of(is_gather ? matrices.output : matrices.input, 0),
          size_of(matrices.weight, 0),
          size_of(matrices.weight, 1)};
}

std::uint64_t transferred_bytes(isthmus_fused_kind kind, const product_matrices& matrices) {
  return kind == ISTHMUS_FUSED_ALLGATHER_GEMM ? matrices.input.nbytes() : matrices.output.nbytes();
}

collective_task fused_product(const product_matrices& matrices, std::shared_ptr<product_plan> plan) {
  const isthmus_fused_kind kind = plan->shape().kind;
  const bool is_gather = kind == ISTHMUS_FUSED_ALLGATHER_GEMM;
  collective_task task = make_task(is_gather ? OpType::ALLGATHER : OpType::REDUCE_SCATTER,
                                   is_gather ? "isthmus:allgather_matmul" : "isthmus:matmul_reduce_scatter",
                                   {matrices.input, matrices.weight}, {matrices.output});
  planned_product product{std::move(plan), {}};
  product.arguments.a = input_buffer(task, matrices.input);
  product.arguments.b = has_row_major_transpose(matrices.weight) ? matrices.weight.const_data_ptr()
                                                                 : input_buffer(task, matrices.weight);
  product.arguments.c = matrices.output.data_ptr();
  if (matrices.gathered.defined()) {
    task.outputs.push_back(matrices.gathered);
    product.arguments.gathered_a = matrices.gathered.data_ptr();
  }
  owned_operation& operation = task.operations.emplace_back();
  operation.planned = std::move(product);
  operation.reported_bytes = transferred_bytes(kind, matrices);
  return task;
}

collective_task reduce(const rank_position& self, const at::Tensor& data, int root,
                       const scaled_reduction& reduction) {
  check_dense("reduce", data);
  collective_task task = make_task(OpType::REDUCE, "isthmus:reduce", {data}, {data});
  isthmus_operation operation = reduction_operation(ISTHMUS_REDUCE, reduction, elements(data));
  operation.root = root;
  operation.send_buf = input_buffer(task, reduced_input(task, data, reduction));
  if (self.rank == root) operation.recv_buf = output_buffer(task, "reduce", data);
  add_operation(task, operation);
  return task;
}

collective_task allgather(const rank_position& self, const tensors& outputs, const at::Tensor& input) {
  check_dense("all_gather", input);
  check_list("all_gather", outputs, static_cast<std::size_t>(self.size), input);
  collective_task task = make_task(OpType::ALLGATHER, "isthmus:all_gather", {input}, outputs);
  const bool is_uniform = has_equal_sizes(outputs, input);
  isthmus_operation operation = movement_operation(is_uniform ? ISTHMUS_ALLGATHER : ISTHMUS_ALLGATHERV,
                                                   input.scalar_type(), elements(input));
  TORCH_CHECK_VALUE(outputs[static_cast<std::size_t>(self.rank)].numel() == input.numel(),
                    "all_gather: the input has ", input.numel(), " elements and the output for this rank has ",
                    outputs[static_cast<std::size_t>(self.rank)].numel(), "; they must be equal");
  operation.send_buf = input_buffer(task, input);
  operation.recv_buf = output_buffer(task, "all_gather", outputs);
  add_operation(task, operation);
  if (!is_uniform) {
    owned_operation& allgatherv = task.operations.back();
    allgatherv.recv_counts = element_counts(outputs, movement_type(input.scalar_type()).per_element);
    allgatherv.recv_displs = displacements_of(allgatherv.recv_counts);
  }
  return task;
}

collective_task allgather_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input) {
  constexpr const char* call = "all_gather_into_tensor";
  check_dense(call, input);
  check_dense(call, output);
  check_same_type(call, output, input);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * self.size, call, ": the output has ", output.numel(),
                    " elements; it must have ", self.size, " times the input's ", input.numel());
  collective_task task =
      make_task(OpType::_ALLGATHER_BASE, "isthmus:all_gather_into_tensor", {input}, {output});
  isthmus_operation operation = movement_operation(ISTHMUS_ALLGATHER, input.scalar_type(), elements(input));
  operation.send_buf = input_buffer(task, input);
  operation.recv_buf = output_buffer(task, call, output);
  add_operation(task, operation);
  return task;
}

collective_task gather(const rank_position& self, const tensors& outputs, const at::Tensor& input, int root) {
  isthmus_operation operation =
      rooted_movement(self, ISTHMUS_GATHER, {"gather", "input", "outputs"}, input, outputs, root);
  collective_task task = make_task(OpType::GATHER, "isthmus:gather", {input}, outputs);
  operation.send_buf = input_buffer(task, input);
  if (self.rank == root) operation.recv_buf = output_buffer(task, "gather", outputs);
  add_operation(task, operation);
  return task;
}

collective_task scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs, int root) {
  isthmus_operation operation =
      rooted_movement(self, ISTHMUS_SCATTER, {"scatter", "output", "inputs"}, output, inputs, root);
  collective_task task = make_task(OpType::SCATTER, "isthmus:scatter", inputs, {output});
  operation.recv_buf = output_buffer(task, "scatter", output);
  if (self.rank == root) operation.send_buf = input_buffer(task, inputs);
  add_operation(task, operation);
  return task;
}

collective_task reduce_scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs,
                               const scaled_reduction& reduction) {
  constexpr const char* call = "reduce_scatter";
  check_dense(call, output);
  check_list(call, inputs, static_cast<std::size_t>(self.size), output);
  const auto own = static_cast<std::size_t>(self.rank);
  TORCH_CHECK_VALUE(inputs[own].numel() == output.numel(), call, ": the output has ", output.numel(),
                    " elements and the input for this rank has ", inputs[own].numel(), "; they must be equal");
  collective_task task = make_task(OpType::REDUCE_SCATTER, "isthmus:reduce_scatter", inputs, {output});
  if (has_equal_sizes(inputs, output)) {
    isthmus_operation operation = reduction_operation(ISTHMUS_REDUCE_SCATTER, reduction, elements(output));
    operation.send_buf = input_buffer(task, reduced_inputs(task, inputs, reduction));
    operation.recv_buf = output_buffer(task, call, output);
    add_operation(task, operation);
    return task;
  }
  const tensors scaled_inputs = reduced_inputs(task, inputs, reduction);
  for (std::size_t root = 0; root < inputs.size(); ++root) {
    isthmus_operation operation = reduction_operation(ISTHMUS_REDUCE, reduction, elements(scaled_inputs[root]));
    operation.root = static_cast<int>(root);
    operation.send_buf = input_buffer(task, scaled_inputs[root]);
    operation.recv_buf = root == own ? output_buffer(task, call, output) : nullptr;
    add_operation(task, operation);
  }
  return task;
}

collective_task reduce_scatter_base(const rank_position& self, const at::Tensor& output,
                                    const at::Tensor& input, const scaled_reduction& reduction) {
  constexpr const char* call = "reduce_scatter_tensor";
  check_dense(call, input);
  check_dense(call, output);
  check_same_type(call, output, input);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * self.size, call, ": the input has ", input.numel(),
                    " elements; it must have ", self.size, " times the output's ", output.numel());
  collective_task task =
      make_task(OpType::_REDUCE_SCATTER_BASE, "isthmus:reduce_scatter_tensor", {input}, {output});
  isthmus_operation operation = reduction_operation(ISTHMUS_REDUCE_SCATTER, reduction, elements(output));
  operation.send_buf = input_buffer(task, reduced_input(task, input, reduction));
  operation.recv_buf = output_buffer(task, call, output);
  add_operation(task, operation);
  return task;
}

collective_task alltoall(const rank_position& self, const tensors& outputs, const tensors& inputs) {
  const auto size = static_cast<std::size_t>(self.size);
  TORCH_CHECK_VALUE(!inputs.empty(), "all_to_all: the list of inputs is empty");
  check_list("all_to_all", inputs, size, inputs.front());
  check_list("all_to_all", outputs, size, inputs.front());
  collective_task task = make_task(OpType::ALLTOALL, "isthmus:all_to_all", inputs, outputs);
  isthmus_operation operation = movement_operation(ISTHMUS_ALLTOALLV, inputs.front().scalar_type(), 0);
  operation.send_buf = input_buffer(task, inputs);
  operation.recv_buf = output_buffer(task, "all_to_all", outputs);
  add_operation(task, operation);
  const std::uint64_t per_element = movement_type(inputs.front().scalar_type()).per_element;
  owned_operation& exchange = task.operations.back();
  exchange.send_counts = element_counts(inputs, per_element);
  exchange.send_displs = displacements_of(exchange.send_counts);
  exchange.recv_counts = element_counts(outputs, per_element);
  exchange.recv_displs = displacements_of(exchange.recv_counts);
  return task;
}

namespace {

// Returns the element counts of a tensor that is split along its first dimension.
std::vector<std::uint64_t> split_counts(const char* side, const at::Tensor& tensor,
                                        const std::vector<int64_t>& rows, const rank_position& self,
                                        std::uint64_t per_element) {
  constexpr const char* call = "all_to_all_single";
  const auto size = static_cast<std::size_t>(self.size);
  if (rows.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % self.size == 0, call, ": the ", side, " has sizes ",
                      tensor.sizes(), "; without splits, its first dimension must be divisible by ", self.size);
    return std::vector<std::uint64_t>(size, elements(tensor) / size * per_element);
  }
  TORCH_CHECK_VALUE(rows.size() == size, call, ": there are ", rows.size(), " ", side,
                    " splits; there must be one for each of ", size, " ranks");
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int64_t dimension = tensor.dim() > 0 ? tensor.size(0) : 1;
  TORCH_CHECK_VALUE(
      total == dimension && std::all_of(rows.begin(), rows.end(), [](int64_t count) { return count >= 0; }),
      call, ": the ", side, " splits are ", rows, "; they must be >= 0 and add up to the first dimension, ",
      dimension);
  const std::uint64_t row = dimension > 0 ? elements(tensor) / static_cast<std::uint64_t>(dimension) : 0;
  std::vector<std::uint64_t> parts;
  for (const int64_t count : rows) parts.push_back(static_cast<std::uint64_t>(count) * row * per_element);
  return parts;
}

}  // namespace

collective_task alltoall_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input,
                              const std::vector<int64_t>& output_splits,
                              const std::vector<int64_t>& input_splits) {
  constexpr const char* call = "all_to_all_single";
  check_dense(call, input);
  check_dense(call, output);
  check_same_type(call, output, input);
  collective_task task = make_task(OpType::ALLTOALL_BASE, "isthmus:all_to_all_single", {input}, {output});
  const std::uint64_t per_element = movement_type(input.scalar_type()).per_element;
  auto sent = split_counts("input", input, input_splits, self, per_element);
  auto received = split_counts("output", output, output_splits, self, per_element);
  TORCH_CHECK_VALUE(!input_splits.empty() || !output_splits.empty() || input.numel() == output.numel(), call,
                    ": the output has ", output.numel(), " elements and the input has ", input.numel(),
                    "; without splits, they must be equal");
  // Always alltoallv: a rank without splits does not know whether other ranks pass some.
  isthmus_operation operation = movement_operation(ISTHMUS_ALLTOALLV, input.scalar_type(), 0);
  operation.send_buf = input_buffer(task, input);
  operation.recv_buf = output_buffer(task, call, output);
  add_operation(task, operation);
  owned_operation& exchange = task.operations.back();
  exchange.send_displs = displacements_of(sent);
  exchange.recv_displs = displacements_of(received);
  exchange.send_counts = std::move(sent);
  exchange.recv_counts = std::move(received);
  return task;
}

collective_task message(const at::Tensor& data, isthmus_collective collective, int peer) {
  const bool is_send = collective == ISTHMUS_SEND;
  collective_task task = is_send ? make_send(data) : make_receive(data);
  isthmus_operation operation = movement_operation(collective, data.scalar_type(), elements(data));
  operation.root = peer;
  if (is_send)
    operation.send_buf = input_buffer(task, data);
  else
    operation.recv_buf = output_buffer(task, "recv", data);
  add_operation(task, operation);
  return task;
}

collective_task host_send(const at::Tensor& data, int tag) {
  collective_task task = make_send(data);
  message_packet header{};
  header.tag = tag;
  header.bytes = data.nbytes();
  header.type = static_cast<std::int32_t>(data.scalar_type());
  const at::Tensor packet = task.scratch.emplace_back(at::empty({sizeof header}, at::kByte));
  std::memcpy(packet.data_ptr(), &header, sizeof header);
  isthmus_operation operation = movement_operation(ISTHMUS_SEND, at::kByte, sizeof header);
  operation.root = 1;
  operation.send_buf = packet.const_data_ptr();
  owned_operation& first = task.operations.emplace_back();
  first.operation = operation;
  if (header.bytes <= message_packet::data_bytes) {
    std::byte* const target = static_cast<std::byte*>(packet.data_ptr()) + offsetof(message_packet, data);
    if (is_row_major(data))
      std::copy_n(static_cast<const std::byte*>(data.const_data_ptr()), header.bytes, target);
    else
      task.copies_in.push_back({at::from_blob(target, data.sizes(), data.options()), data, {}});
    first.reported_bytes = header.bytes;
    return task;
  }
  first.is_reported = false;
  operation.count = header.bytes;
  operation.send_buf = input_buffer(task, data);
  add_operation(task, operation);
  return task;
}

collective_task host_receive(const at::Tensor& data, int tag) {
  check_writable("recv", data);
  collective_task task = make_receive(data);
  task.tag = tag;
  return task;
}

collective_task barrier() {
  collective_task task = make_task(OpType::BARRIER, "isthmus:barrier", {}, {});
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  add_operation(task, operation);
  task.blocks_host = true;
  return task;
}

}  // namespace tasks
}  // namespace isthmus::torch_backend
