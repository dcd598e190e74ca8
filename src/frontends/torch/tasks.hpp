// The task of each call, from its tensors alone: shapes are checked here, and what is contiguous in memory
// already is not copied. Throw c10::ValueError that names the call, the tensor and the rule.
#pragma once

#include "datatypes.hpp"
#include "task.hpp"

namespace isthmus::torch_backend::tasks {

using tensors = std::vector<at::Tensor>;

// Who calls: its rank among `size`.
struct rank_position {
  int rank, size;
};

// How a reducing call combines: `factor` is defined for PREMUL_SUM, whose input is multiplied on the way in.
struct scaled_reduction {
  reduction_mapping mapping;
  at::Tensor factor;
};

// Dense, and contiguous in its own memory format, as torch.distributed asks of every tensor.
void check_dense(const char* call, const at::Tensor& tensor);

collective_task broadcast(const at::Tensor& data, int root);
collective_task allreduce(const at::Tensor& data, const scaled_reduction& reduction);
collective_task reduce(const at::Tensor& data, int root, const scaled_reduction& reduction);
// Blocks may differ in size if all ranks pass the same sizes.
collective_task allgather(const rank_position& self, const tensors& outputs, const at::Tensor& input);
collective_task allgather_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input);
// `outputs` is empty on all ranks but the root.
collective_task gather(const rank_position& self, const tensors& outputs, const at::Tensor& input, int root);
collective_task scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs, int root);
collective_task reduce_scatter(const rank_position& self, const at::Tensor& output, const tensors& inputs, const scaled_reduction& reduction);
collective_task reduce_scatter_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input,
                         const scaled_reduction& reduction);
collective_task alltoall(const rank_position& self, const tensors& outputs, const tensors& inputs);
// Splits are rows of the first dimension; empty: equal parts.
collective_task alltoall_base(const rank_position& self, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits);
collective_task message(const at::Tensor& data, isthmus_collective collective, int peer);
collective_task barrier();

}  // namespace isthmus::torch_backend::tasks
