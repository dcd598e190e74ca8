// Collectives and messages of process_group. Each call checks its lists and submits a task from tasks.hpp.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "process_group.hpp"
#include "tasks.hpp"

namespace isthmus::torch_backend {
namespace {

const at::Tensor& single_element(const char* call, const tensors& list) {
  TORCH_CHECK_VALUE(list.size() == 1, call, ": the list has ", list.size(),
                    " tensors; it must have one, because a process uses one device");
  return list.front();
}

const tensors& single_element(const char* call, const tensor_lists& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, call, ": there are ", lists.size(),
                    " lists of tensors; there must be one, because a process uses one device");
  return lists.front();
}

const tensors& optional_list(const char* call, const tensor_lists& lists) {
  static const tensors empty;
  return lists.empty() ? empty : single_element(call, lists);
}

// Returns the factor of PREMUL_SUM, or an undefined tensor for other reductions.
at::Tensor factor_of(const c10d::ReduceOp& op, at::ScalarType type) {
  if (op != c10d::ReduceOp::PREMUL_SUM) return {};
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr,
                    "PREMUL_SUM has no factor; create it with torch.distributed._make_nccl_premul_sum");
  if (factor->tensor_factor.defined()) return factor->tensor_factor;
  return at::scalar_tensor(factor->double_factor, at::TensorOptions().dtype(type));
}

}  // namespace

work_ptr process_group::broadcast(tensors& data, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = single_element("broadcast", data);
  return submit(tensor.device(), wait_options_from(options),
                [&] { return tasks::broadcast(self(), tensor, static_cast<int>(options.rootRank)); });
}

work_ptr process_group::allreduce(tensors& data, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = single_element("all_reduce", data);
  if (tensor.is_sparse()) return allreduce_sparse(data, options);
  return submit_reduction(
      "allreduce", tensor, options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) { return tasks::allreduce(tensor, reduction); },
      [&](c10d::Backend& other) { return other.allreduce(data, options); });
}

bool process_group::try_allreduce_inline(const at::Tensor& data, c10d::ReduceOp::RedOpType op) {
  using c10d::ReduceOp;
  const bool is_plain = (data.is_cpu() || data.is_cuda()) && data.layout() == at::kStrided &&
                        data.has_storage() && !data.requires_grad() &&
                        !data.key_set().has(c10::DispatchKey::Python) && op != ReduceOp::PREMUL_SUM;
  if (!is_plain || at::hasCallbacks() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
      at::impl::torch_function_mode_enabled() || current_batch() != nullptr)
    return false;
  const char* reason = "";
  const auto mapping = find_reduction(data.scalar_type(), ReduceOp(op), reason);
  if (!mapping) return false;
  if (!executor_for(resolve(data.device()))->try_run_inline([&] {
        return tasks::allreduce(data, {*mapping, {}});
      }))
    return false;
  ++m_sequence;
  return true;
}

work_ptr process_group::allreduce_coalesced(tensors& data, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!data.empty(), "all_reduce_coalesced: the list of tensors is empty; pass at least one");
  return submit_reduction(
      "allreduce", data.front(), options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) {
        collective_task all = tasks::allreduce(data.front(), reduction);
        for (std::size_t index = 1; index < data.size(); ++index) {
          TORCH_CHECK_VALUE(data[index].scalar_type() == data.front().scalar_type(),
                            "all_reduce_coalesced: all tensors must have the same dtype");
          all.append(tasks::allreduce(data[index], reduction));
        }
        return all;
      },
      [&](c10d::Backend& other) { return other.allreduce_coalesced(data, options); });
}

work_ptr process_group::allreduce_sparse(tensors& data, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = single_element("all_reduce", data);
  auto& other = fallback(tensor.device(), "allreduce", "Isthmus has no sparse reduction", tensor);
  // gloo accepts sparse tensors in allreduce()
  return tensor.is_cpu() ? other.allreduce(data, options) : other.allreduce_sparse(data, options);
}

work_ptr process_group::reduce(tensors& data, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = single_element("reduce", data);
  return submit_reduction(
      "reduce", tensor, options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) {
        return tasks::reduce(self(), tensor, static_cast<int>(options.rootRank), reduction);
      },
      [&](c10d::Backend& other) { return other.reduce(data, options); });
}

work_ptr process_group::allgather(tensor_lists& outputs, tensors& inputs,
                                  const c10d::AllgatherOptions& options) {
  const at::Tensor& input = single_element("all_gather", inputs);
  return submit(input.device(), wait_options_from(options),
                [&] { return tasks::allgather(self(), single_element("all_gather", outputs), input); });
}

work_ptr process_group::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  return submit(input.device(), wait_options_from(options),
                [&] { return tasks::allgather_base(self(), output, input); });
}

work_ptr process_group::allgather_coalesced(tensor_lists& outputs, tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather_coalesced: the list of inputs is empty; pass at least one");
  return submit(inputs.front().device(), wait_options_from(options), [&] {
    collective_task all;
    for (std::size_t index = 0; index < inputs.size(); ++index) {
      tensors rank_outputs;
      for (const tensors& rank_list : outputs) rank_outputs.push_back(rank_list.at(index));
      all.append(tasks::allgather(self(), rank_outputs, inputs[index]));
    }
    all.kind = c10d::OpType::ALLGATHER_COALESCED;
    all.title = "isthmus:all_gather_coalesced";
    return all;
  });
}

work_ptr process_group::allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "all_gather_into_tensor_coalesced: there are ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs; there must be one output per input, and at least one");
  return submit(inputs.front().device(), wait_options_from(options), [&] {
    collective_task all = tasks::allgather_base(self(), outputs.front(), inputs.front());
    for (std::size_t index = 1; index < inputs.size(); ++index)
      all.append(tasks::allgather_base(self(), outputs[index], inputs[index]));
    return all;
  });
}

work_ptr process_group::gather(tensor_lists& outputs, tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = single_element("gather", inputs);
  return submit(input.device(), wait_options_from(options), [&] {
    return tasks::gather(self(), optional_list("gather", outputs), input, static_cast<int>(options.rootRank));
  });
}

work_ptr process_group::scatter(tensors& outputs, tensor_lists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = single_element("scatter", outputs);
  return submit(output.device(), wait_options_from(options), [&] {
    return tasks::scatter(self(), output, optional_list("scatter", inputs), static_cast<int>(options.rootRank));
  });
}

work_ptr process_group::reduce_scatter(tensors& outputs, tensor_lists& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = single_element("reduce_scatter", outputs);
  return submit_reduction(
      "reduce_scatter", output, options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) {
        return tasks::reduce_scatter(self(), output, single_element("reduce_scatter", inputs), reduction);
      },
      [&](c10d::Backend& other) { return other.reduce_scatter(outputs, inputs, options); });
}

work_ptr process_group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  return submit_reduction(
      "reduce_scatter", output, options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) {
        return tasks::reduce_scatter_base(self(), output, input, reduction);
      },
      [&](c10d::Backend& other) { return other._reduce_scatter_base(output, input, options); });
}

work_ptr process_group::reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "reduce_scatter_tensor_coalesced: there are ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs; there must be one output per input, and at least one");
  return submit_reduction(
      "reduce_scatter", outputs.front(), options.reduceOp, wait_options_from(options),
      [&](const tasks::scaled_reduction& reduction) {
        collective_task all = tasks::reduce_scatter_base(self(), outputs.front(), inputs.front(), reduction);
        for (std::size_t index = 1; index < inputs.size(); ++index) {
          TORCH_CHECK_VALUE(inputs[index].scalar_type() == inputs.front().scalar_type(),
                            "reduce_scatter_tensor_coalesced: all tensors must have the same dtype");
          all.append(tasks::reduce_scatter_base(self(), outputs[index], inputs[index], reduction));
        }
        return all;
      },
      [&](c10d::Backend& other) { return other.reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

work_ptr process_group::alltoall_base(at::Tensor& output, at::Tensor& input, splits& output_splits,
                                      splits& input_splits, const c10d::AllToAllOptions& options) {
  return submit(input.device(), wait_options_from(options),
                [&] { return tasks::alltoall_base(self(), output, input, output_splits, input_splits); });
}

work_ptr process_group::alltoall(tensors& outputs, tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(),
                    "all_to_all: the list of inputs is empty; it must have one tensor per rank");
  return submit(inputs.front().device(), wait_options_from(options),
                [&] { return tasks::alltoall(self(), outputs, inputs); });
}

// ---- reductions -----------------------------------------------------------------------------------------

work_ptr process_group::submit_reduction(
    const char* collective, const at::Tensor& sample, const c10d::ReduceOp& op, const wait_options& wait,
    c10::function_ref<collective_task(const tasks::scaled_reduction&)> build,
    c10::function_ref<work_ptr(c10d::Backend&)> call_fallback) {
  const char* reason = "";
  if (const auto mapping = find_reduction(sample.scalar_type(), op, reason)) {
    const tasks::scaled_reduction reduction{*mapping, factor_of(op, sample.scalar_type())};
    return submit(sample.device(), wait, [&] { return build(reduction); });
  }
  const work_ptr work = call_fallback(fallback(sample.device(), collective, reason, sample));
  coalesced_calls* const batch = current_batch();
  if (batch == nullptr) return work;
  batch->works.push_back(work);
  return nullptr;
}

// ---- operators ------------------------------------------------------------------------------------------

void process_group::reject_coalescing(const char* operation) {
  TORCH_CHECK(current_batch() == nullptr, operation, ": process group ", m_settings.name,
              " is coalescing calls; call it before or after them");
}

void process_group::allreduce_rmsnorm(const tasks::rmsnorm_tensors& tensors, double eps,
                                      bool round_before_weight) {
  reject_coalescing("allreduce_rmsnorm");
  submit(tensors.input.device(), {.is_asynchronous = false}, [&] {
    return tasks::allreduce_rmsnorm(tensors, eps, round_before_weight);
  })->wait();
}

void process_group::matmul_allreduce(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& output) {
  reject_coalescing("matmul_allreduce");
  if (try_matmul_allreduce(input, weight, output)) return;
  at::Tensor products = output;
  at::mm_out(products, input, weight.t());
  const char* reason = "";
  const auto sum = find_reduction(output.scalar_type(), c10d::ReduceOp::SUM, reason);
  submit(output.device(), {.is_asynchronous = false}, [&] {
    return tasks::allreduce(output, {*sum, {}});
  })->wait();
}

// The result is equal on all ranks.
bool process_group::try_matmul_allreduce(const at::Tensor& input, const at::Tensor& weight,
                                         const at::Tensor& output) {
  if (input.is_cpu() || input.size(0) > ISTHMUS_PRODUCT_MAX_ROWS || output.numel() == 0) return false;
  std::optional<collective_task> task =
      tasks::matmul_allreduce(input, weight, output, [&](const owned_operation& each) {
        return executor_for(input.device())->endpoint()->is_supported(each);
      });
  if (!task) return false;
  submit(input.device(), {.is_asynchronous = false}, [&] { return std::move(*task); })->wait();
  return true;
}

void process_group::fused_product(isthmus_fused_kind kind, const tasks::product_matrices& matrices) {
  reject_coalescing(operator_name(kind));
  if (try_fused_product(kind, matrices)) return;
  const auto& [input, weight, output, gathered] = matrices;
  if (kind == ISTHMUS_FUSED_ALLGATHER_GEMM) {
    const at::Tensor rows =
        gathered.defined() ? gathered : at::empty({output.size(0), input.size(1)}, input.options());
    submit(input.device(), {.is_asynchronous = false}, [&] {
      return tasks::allgather_base(self(), rows, input);
    })->wait();
    at::Tensor product = output;
    at::mm_out(product, rows, weight.t());
    return;
  }
  const char* reason = "";
  const auto sum = find_reduction(output.scalar_type(), c10d::ReduceOp::SUM, reason);
  const at::Tensor product = at::mm(input, weight.t());
  submit(input.device(), {.is_asynchronous = false}, [&] {
    return tasks::reduce_scatter_base(self(), output, product, {*sum, {}});
  })->wait();
}

// The result is equal on all ranks.
bool process_group::try_fused_product(isthmus_fused_kind kind, const tasks::product_matrices& matrices) {
  const c10::Device device = resolve(matrices.input.device());
  const std::shared_ptr<product_plan> plan = executor_for(device)->plan_for(tasks::shape_of(kind, matrices));
  if (!plan) return false;
  if (!plan->is_supported()) {
    plan->counter().add(tasks::transferred_bytes(kind, matrices), 0);
    return false;
  }
  submit(device, {.is_asynchronous = false}, [&] { return tasks::fused_product(matrices, plan); })->wait();
  return true;
}

// ---- messages -----------------------------------------------------------------------------------------

// Each peer and direction has its own communicator, so that messages do not wait for collectives. On the host, it serves
// all tags. On a device, coalesced messages start together on the group's communicator, as batch_isend_irecv requires.
work_ptr process_group::message(const at::Tensor& data, isthmus_collective collective, int peer, int tag) {
  const batch_call call(current_batch());
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), "isthmus: send/recv: peer is ", peer,
                    "; it must be another rank of the group of size ", getSize());
  const c10::Device device = resolve(data.device());
  if (call.batch != nullptr && !device.is_cpu())
    return submit(device, {}, [&] { return tasks::message(data, collective, peer); });
  const bool is_send = collective == ISTHMUS_SEND;
  const std::shared_ptr<task_executor> executor =
      executor_for(device, is_send ? message_channel{getRank(), peer} : message_channel{peer, getRank()});
  collective_task task = executor->prepare(true, [&] {
    if (device.is_cpu()) return is_send ? tasks::host_send(data, tag) : tasks::host_receive(data, tag);
    return tasks::message(data, collective, is_send ? 1 : 0);  // the sender is rank 0 of the pair
  });
  if (call.batch == nullptr) return executor->run(std::move(task));
  call.batch->messages.emplace_back(executor, std::move(task));
  return nullptr;
}

work_ptr process_group::send(tensors& data, int peer, int tag) {
  return message(single_element("send", data), ISTHMUS_SEND, peer, tag);
}

work_ptr process_group::recv(tensors& data, int peer, int tag) {
  return message(single_element("recv", data), ISTHMUS_RECV, peer, tag);
}

work_ptr process_group::recvAnysource(tensors& /*data*/, int /*tag*/) {
  C10_THROW_ERROR(NotImplementedError,
                  "isthmus: recv: receiving from any source is not supported; pass the source rank (src=...)");
}

}  // namespace isthmus::torch_backend
