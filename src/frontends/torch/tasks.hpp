// Functions that create the task of each call from its tensors. They check the shapes and avoid copies
// of contiguous memory.
// Errors: c10::ValueError with the call, the tensor and the rule.
#pragma once

#include "datatypes.hpp"
#include "task.hpp"

namespace isthmus::torch_backend::tasks {

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

// Checks that a tensor is dense and contiguous in its memory format, as torch.distributed requires.
void check_dense(const char* call, const at::Tensor& tensor);

collective_task broadcast(const at::Tensor& data, int root);
collective_task allreduce(const at::Tensor& data, const scaled_reduction& reduction);
collective_task reduce(const at::Tensor& data, int root, const scaled_reduction& reduction);
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
collective_task message(const at::Tensor& data, isthmus_collective collective, int peer);
collective_task barrier();

}  // namespace isthmus::torch_backend::tasks
