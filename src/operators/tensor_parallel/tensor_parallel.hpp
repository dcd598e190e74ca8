// Implements isthmus/tensor_parallel.h: allreduce over the devices of one process without a communicator.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <array>
#include <vector>

#include "selection/selection.hpp"

namespace isthmus::tensor_parallel {

// Errors: throws error.
isthmus_tensor_parallel create(int n, const isthmus_device* devices, const isthmus_stream* streams,
                               const isthmus_tensor_parallel_options* user_options);

// Errors: sets the thread's last error and returns its status. No tensor has been modified in this case.
// Thread safety: one thread at a time per handle.
isthmus_status allreduce(isthmus_tensor_parallel handle, void* const* pointers, uint64_t count,
                         isthmus_datatype datatype, uint64_t active);

void destroy(isthmus_tensor_parallel handle);

// The engine of the host platform. Sums in the calling thread, block by block. Supports every datatype.
const isthmus_tensor_parallel_engine& host_engine() noexcept;

// Algorithm and wire format for a tensor, precomputed once per handle from the configuration's rules.
class tuning_table {
 public:
  // Allreduce rules that name tensor_parallel_backend and an algorithm select one shot or two shots. The
  // backend's option bf16_elements_<n> (or bf16_elements) is the minimum number of elements for which float32
  // tensors use a bfloat16 wire.
  // Errors: throws error (CONFIG) for an option that is not a number.
  tuning_table(const selection::configuration& rules, isthmus_platform platform, int ranks, isthmus_wire wire);

  isthmus_tensor_parallel_algorithm algorithm(isthmus_datatype datatype, std::uint64_t wire_bytes) const;
  bool bfloat16_wire(isthmus_datatype datatype, std::uint64_t count) const {
    return datatype == ISTHMUS_FLOAT32 && count >= m_bf16_elements;
  }

 private:
  struct algorithm_range {
    std::uint64_t begin_bytes;
    isthmus_tensor_parallel_algorithm algorithm;
  };
  std::array<std::vector<algorithm_range>, ISTHMUS_DATATYPE_COUNT> m_steps;
  std::uint64_t m_bf16_elements;
};

}  // namespace isthmus::tensor_parallel
