// The operators torch.ops.isthmus: allreduce_rmsnorm, matmul_allreduce, allgather_matmul and matmul_reduce_scatter.
// They are written in C++, because an operator in Python takes about 100 us more of the host's time.
//
// A group is passed by its name, because arguments in a graph cannot be groups. Results are new tensors, because
// torch.compile has to copy around operators that change their arguments. The functions allocate_* check the arguments
// and return uninitialized results, and are also the kernels for fake tensors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/matmul.h>
#include <isthmus/allreduce_rmsnorm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "process_group.hpp"

namespace isthmus::torch_backend {
namespace {

using at::Tensor;
using shape = c10::SymDimVector;
using pair = std::tuple<Tensor, Tensor>;
using triple = std::tuple<Tensor, Tensor, Tensor>;

// ---- groups and arguments ----

// TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backends, and only Python can unwrap them.
c10::intrusive_ptr<process_group> unwrapped_backend(const std::string& group_name, c10::Device device) {
  const pybind11::gil_scoped_acquire lock;
  const auto import = [](const char* name) { return pybind11::module_::import(name); };
  const auto group = import("torch.distributed.distributed_c10d").attr("_resolve_process_group")(group_name);
  const pybind11::object backend = import("isthmus.torch._backend").attr("backend_for")(group, device);
  return backend.is_none() ? nullptr : backend.cast<c10::intrusive_ptr<process_group>>();
}

// Returns the Isthmus backend of a group.
c10::intrusive_ptr<process_group> backend_of(const char* name, const std::string& group_name,
                                             c10::Device device) {
  const auto group = c10d::resolve_process_group(group_name);
  c10::intrusive_ptr<process_group> own;
  for (const c10::Device each : group->getDeviceTypes())
    if (each.type() == device.type())
      own = c10::dynamic_intrusive_pointer_cast<process_group>(group->getBackend(each.type()));
  if (!own) own = unwrapped_backend(group_name, device);
  TORCH_CHECK_VALUE(own, "isthmus::", name, ": group ", group_name, " has no isthmus backend for ",
                    c10::DeviceTypeName(device.type(), /*lower_case=*/true),
                    "; create it with a backend such as 'cpu:isthmus,cuda:isthmus'");
  return own;
}

int64_t size_of(const std::string& group_name) { return c10d::resolve_process_group(group_name)->getSize(); }

bool is_supported(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat;
}

void reject_gradients(const char* name, std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return;
  for (const Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(
        !tensor.requires_grad(), "isthmus::", name,
        ": a tensor requires a gradient; call it under torch.no_grad() or torch.inference_mode()");
}

void check_product(const char* name, const Tensor& input, const Tensor& weight) {
  TORCH_CHECK_VALUE(is_supported(input.scalar_type()) && input.dim() >= 2, "isthmus::", name,
                    ": input has the shape ", input.sym_sizes(), " and the type ", input.scalar_type(),
                    "; it must be float16, bfloat16 or float32, with at least two dimensions");
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.sym_size(1) == input.sym_size(-1) &&
                        weight.scalar_type() == input.scalar_type() && weight.device() == input.device(),
                    "isthmus::", name, ": weight has the shape ", weight.sym_sizes(), ", the type ",
                    weight.scalar_type(), " and the device ", weight.device(), "; input requires [n, ",
                    input.sym_size(-1), "], ", input.scalar_type(), " and ", input.device());
}

Tensor rows_of(const Tensor& tensor) { return tensor.flatten(0, -2); }

// ---- allreduce_rmsnorm ----

void check_like(const char* name, const Tensor& tensor, const Tensor& input, c10::SymIntArrayRef sizes) {
  TORCH_CHECK_VALUE(tensor.sym_sizes() == sizes && tensor.scalar_type() == input.scalar_type() &&
                        tensor.device() == input.device(),
                    "isthmus::allreduce_rmsnorm: ", name, " has the shape ", tensor.sym_sizes(), ", the type ",
                    tensor.scalar_type(), " and the device ", tensor.device(), "; input requires ", sizes, ", ",
                    input.scalar_type(), " and ", input.device());
}

triple allocate_rmsnorm(const Tensor& input, const Tensor& residual, const Tensor& weight, double /*eps*/,
                        const std::string& /*group_name*/, const std::optional<Tensor>& scale, bool row_scales,
                        bool /*round_before_weight*/) {
  constexpr const char* name = "isthmus::allreduce_rmsnorm";
  const c10::SymInt hidden = input.dim() == 0 ? c10::SymInt(0) : input.sym_size(-1);
  TORCH_CHECK_VALUE(is_supported(input.scalar_type()) && hidden >= 1 && hidden <= ISTHMUS_RMSNORM_MAX_HIDDEN,
                    name, ": input has the shape ", input.sym_sizes(), " and the type ", input.scalar_type(),
                    "; it must be float16, bfloat16 or float32, with 1 to ", ISTHMUS_RMSNORM_MAX_HIDDEN,
                    " elements in the last dimension");
  check_like("residual", residual, input, input.sym_sizes());
  check_like("weight", weight, input, input.sym_sizes().slice(static_cast<std::size_t>(input.dim()) - 1));
  TORCH_CHECK_VALUE(!scale || !row_scales, name, ": scale and row_scales are both set; pass one of them");
  TORCH_CHECK_VALUE(
      !scale ||
          (scale->sym_numel() == 1 && scale->scalar_type() == at::kFloat && scale->device() == input.device()),
      name, ": scale has the shape ", scale->sym_sizes(), ", the type ", scale->scalar_type(),
      " and the device ", scale->device(), "; it must have one element of type float32 on ", input.device());
  reject_gradients("allreduce_rmsnorm", {input, residual, weight});
  shape rows{c10::SymInt(0)};
  if (row_scales) {
    rows.assign(input.sym_sizes().begin(), input.sym_sizes().end());
    rows.back() = 1;
  }
  const auto type = scale || row_scales ? at::kFloat8_e4m3fn : input.scalar_type();
  return {input.new_empty_symint(input.sym_sizes(), input.options().dtype(type)),
          input.new_empty_symint(input.sym_sizes()),
          input.new_empty_symint(rows, input.options().dtype(at::kFloat))};
}

triple allreduce_rmsnorm(const Tensor& input, const Tensor& residual, const Tensor& weight, double eps,
                         const std::string& group_name, const std::optional<Tensor>& scale, bool row_scales,
                         bool round_before_weight) {
  triple results =
      allocate_rmsnorm(input, residual, weight, eps, group_name, scale, row_scales, round_before_weight);
  const auto& [normalized, residual_out, scales] = results;
  backend_of("allreduce_rmsnorm", group_name, input.device())
      ->allreduce_rmsnorm({input.contiguous(), residual.contiguous(), weight.contiguous(), residual_out,
                           normalized, scale.value_or(Tensor()), row_scales ? scales : Tensor()},
                          eps, round_before_weight);
  return results;
}

// ---- matmul_allreduce ----

Tensor allocate_matmul_allreduce(const Tensor& input, const Tensor& weight, const std::string& /*group_name*/) {
  check_product("matmul_allreduce", input, weight);
  reject_gradients("matmul_allreduce", {input, weight});
  shape sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  sizes.back() = weight.sym_size(0);
  return input.new_empty_symint(sizes);
}

Tensor matmul_allreduce(const Tensor& input, const Tensor& weight, const std::string& group_name) {
  const Tensor output = allocate_matmul_allreduce(input, weight, group_name);
  backend_of("matmul_allreduce", group_name, input.device())
      ->matmul_allreduce(rows_of(input), weight, rows_of(output));
  return output;
}

// ---- allgather_matmul and matmul_reduce_scatter ----

pair allocate_allgather_matmul(const Tensor& input, const Tensor& weight, const std::string& group_name,
                               bool return_gathered) {
  check_product("allgather_matmul", input, weight);
  shape sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  sizes.front() *= size_of(group_name);
  Tensor gathered = return_gathered ? input.new_empty_symint(sizes) : input.new_empty({0});
  sizes.back() = weight.sym_size(0);
  return {input.new_empty_symint(sizes), std::move(gathered)};
}

pair allgather_matmul(const Tensor& input, const Tensor& weight, const std::string& group_name,
                      bool return_gathered) {
  pair results = allocate_allgather_matmul(input, weight, group_name, return_gathered);
  const auto& [output, gathered] = results;
  backend_of("allgather_matmul", group_name, input.device())
      ->fused_product(ISTHMUS_FUSED_ALLGATHER_GEMM, {rows_of(input).contiguous(), weight, rows_of(output),
                                                     return_gathered ? rows_of(gathered) : Tensor()});
  return results;
}

Tensor allocate_matmul_reduce_scatter(const Tensor& input, const Tensor& weight,
                                      const std::string& group_name) {
  check_product("matmul_reduce_scatter", input, weight);
  const int64_t size = size_of(group_name);
  TORCH_CHECK_VALUE(input.sym_size(0) % size == 0, "isthmus::matmul_reduce_scatter: input has the shape ",
                    input.sym_sizes(), "; the first dimension must be a multiple of the ", size,
                    " ranks of the group; pad it");
  shape sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  sizes.front() /= size;
  sizes.back() = weight.sym_size(0);
  return input.new_empty_symint(sizes);
}

Tensor matmul_reduce_scatter(const Tensor& input, const Tensor& weight, const std::string& group_name) {
  const Tensor output = allocate_matmul_reduce_scatter(input, weight, group_name);
  backend_of("matmul_reduce_scatter", group_name, input.device())
      ->fused_product(ISTHMUS_FUSED_GEMM_REDUCE_SCATTER,
                      {rows_of(input).contiguous(), weight, rows_of(output), Tensor()});
  return output;
}

// ---- gradients ----

// Calls an operator through the dispatcher, so that torch.compile sees it.
template <typename Function, typename... Arguments>
auto call(const char* name, Arguments&&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>().call(
      std::forward<Arguments>(arguments)...);
}

pair call_allgather_matmul(const Tensor& input, const Tensor& weight, const std::string& group_name,
                           bool return_gathered) {
  return call<decltype(allgather_matmul)>("isthmus::allgather_matmul", input, weight, group_name,
                                          return_gathered);
}

Tensor call_matmul_reduce_scatter(const Tensor& input, const Tensor& weight, const std::string& group_name) {
  return call<decltype(matmul_reduce_scatter)>("isthmus::matmul_reduce_scatter", input, weight, group_name);
}

// Calls a functional collective. The type of its argument for the group depends on the version of PyTorch.
template <typename... Arguments>
Tensor call_functional(const char* name, Arguments&&... arguments) {
  torch::jit::Stack stack{c10::IValue(std::forward<Arguments>(arguments))...};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.front().toTensor();
}

Tensor wait(const Tensor& pending) { return call_functional("_c10d_functional::wait_tensor", pending); }

Tensor gather_rows(const Tensor& block, const std::string& group_name) {
  return wait(call_functional("_c10d_functional::all_gather_into_tensor", block.contiguous(),
                              size_of(group_name), group_name));
}

Tensor scatter_sum(const Tensor& rows, const std::string& group_name) {
  return wait(call_functional("_c10d_functional::reduce_scatter_tensor", rows.contiguous(), "sum",
                              size_of(group_name), group_name));
}

Tensor gradient_of_weight(const Tensor& of_output, const Tensor& input) {
  return at::matmul(rows_of(of_output).t(), rows_of(input));
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Does not save the gathered input. Training with sequence parallelism usually has less memory than bandwidth to spare.
struct allgather_matmul_function : torch::autograd::Function<allgather_matmul_function> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                               const std::string& group_name, bool return_gathered) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    context->save_for_backward({input, weight});
    context->saved_data["group_name"] = group_name;
    context->set_materialize_grads(false);
    const auto [output, gathered] = call_allgather_matmul(input, weight, group_name, return_gathered);
    if (!return_gathered) context->mark_non_differentiable({gathered});
    return {output, gathered};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::string group_name = context->saved_data["group_name"].toStringRef();
    const Tensor &input = saved[0], &weight = saved[1], &of_output = gradients[0], &of_gathered = gradients[1];
    Tensor of_input, of_weight;
    if (of_output.defined() && context->needs_input_grad(0))
      of_input = call_matmul_reduce_scatter(of_output, weight.t(), group_name);
    if (of_gathered.defined() && context->needs_input_grad(0)) {
      const Tensor block = scatter_sum(of_gathered, group_name);
      of_input = of_input.defined() ? of_input + block : block;
    }
    if (of_output.defined() && context->needs_input_grad(1))
      of_weight = gradient_of_weight(of_output, gather_rows(input, group_name));
    return {of_input, of_weight, Tensor(), Tensor()};
  }
};

struct matmul_reduce_scatter_function : torch::autograd::Function<matmul_reduce_scatter_function> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::string& group_name) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    context->save_for_backward({input, weight});
    context->saved_data["group_name"] = group_name;
    return call_matmul_reduce_scatter(input, weight, group_name);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const bool needs_weight = context->needs_input_grad(1);
    const auto [of_input, gathered] = call_allgather_matmul(
        gradients[0], saved[1].t(), context->saved_data["group_name"].toStringRef(), needs_weight);
    return {of_input, needs_weight ? gradient_of_weight(gathered, saved[0]) : Tensor(), Tensor()};
  }
};

pair allgather_matmul_autograd(const Tensor& input, const Tensor& weight, const std::string& group_name,
                               bool return_gathered) {
  const variable_list results = allgather_matmul_function::apply(input, weight, group_name, return_gathered);
  return {results[0], results[1]};
}

Tensor matmul_reduce_scatter_autograd(const Tensor& input, const Tensor& weight,
                                      const std::string& group_name) {
  return matmul_reduce_scatter_function::apply(input, weight, group_name);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(isthmus, library) {
  library.def(
      "allreduce_rmsnorm(Tensor input, Tensor residual, Tensor weight, float eps, str group_name, "
      "Tensor? scale=None, bool row_scales=False, bool round_before_weight=False) -> "
      "(Tensor normalized, Tensor residual_out, Tensor scales)");
  library.def("matmul_allreduce(Tensor input, Tensor weight, str group_name) -> Tensor");
  library.def(
      "allgather_matmul(Tensor input, Tensor weight, str group_name, bool return_gathered=False) -> "
      "(Tensor output, Tensor gathered)");
  library.def("matmul_reduce_scatter(Tensor input, Tensor weight, str group_name) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library.impl("allreduce_rmsnorm", torch::dispatch(key, allreduce_rmsnorm));
    library.impl("matmul_allreduce", torch::dispatch(key, matmul_allreduce));
    library.impl("allgather_matmul", torch::dispatch(key, allgather_matmul));
    library.impl("matmul_reduce_scatter", torch::dispatch(key, matmul_reduce_scatter));
  }
  constexpr c10::DispatchKey fake = c10::DispatchKey::Meta;
  library.impl("allreduce_rmsnorm", torch::dispatch(fake, allocate_rmsnorm));
  library.impl("matmul_allreduce", torch::dispatch(fake, allocate_matmul_allreduce));
  library.impl("allgather_matmul", torch::dispatch(fake, allocate_allgather_matmul));
  library.impl("matmul_reduce_scatter", torch::dispatch(fake, allocate_matmul_reduce_scatter));
  constexpr c10::DispatchKey autograd = c10::DispatchKey::Autograd;
  library.impl("allgather_matmul", torch::dispatch(autograd, allgather_matmul_autograd));
  library.impl("matmul_reduce_scatter", torch::dispatch(autograd, matmul_reduce_scatter_autograd));
}

}  // namespace isthmus::torch_backend
