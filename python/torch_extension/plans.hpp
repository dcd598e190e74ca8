// The plan of each call, from its tensors alone: shapes are checked here, and what is contiguous in memory
// already is not copied. Throw c10::ValueError that names the call, the tensor and the rule.
#pragma once

#include "datatypes.hpp"
#include "plan.hpp"

namespace isthmus::torch_backend::plans {

using tensors = std::vector<at::Tensor>;

// Who plans: its rank among `size`.
struct party {
  int rank, size;
};

// How a reducing call combines: `factor` is defined for PREMUL_SUM, whose input is multiplied on the way in.
struct combination {
  reduction how;
  at::Tensor factor;
};

// Dense, and contiguous in its own memory format, as torch.distributed asks of every tensor.
void check_dense(const char* call, const at::Tensor& tensor);

plan broadcast(const at::Tensor& data, int root);
plan allreduce(const at::Tensor& data, const combination& by);
plan reduce(const at::Tensor& data, int root, const combination& by);
// Blocks may differ in size if all ranks pass the same sizes.
plan allgather(const party& self, const tensors& outputs, const at::Tensor& input);
plan allgather_base(const party& self, const at::Tensor& output, const at::Tensor& input);
// `outputs` is empty on all ranks but the root.
plan gather(const party& self, const tensors& outputs, const at::Tensor& input, int root);
plan scatter(const party& self, const at::Tensor& output, const tensors& inputs, int root);
plan reduce_scatter(const party& self, const at::Tensor& output, const tensors& inputs, const combination& by);
plan reduce_scatter_base(const party& self, const at::Tensor& output, const at::Tensor& input,
                         const combination& by);
plan alltoall(const party& self, const tensors& outputs, const tensors& inputs);
// Splits are rows of the first dimension; empty: equal parts.
plan alltoall_base(const party& self, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits);
plan message(const at::Tensor& data, isthmus_collective collective, int peer);
plan barrier();

}  // namespace isthmus::torch_backend::plans
