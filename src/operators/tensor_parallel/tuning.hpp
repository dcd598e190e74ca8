// Which algorithm and wire a tensor takes: the configuration's rules, worked out once for a handle.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <array>
#include <vector>

#include "selection/selection.hpp"

namespace isthmus::tensor_parallel {

class tuning_table {
 public:
  // The rules for allreduce that name tensor_parallel_backend and an algorithm decide between one and two
  // shots; its option bf16_elements_<n> (or bf16_elements) says from how many elements on float32 tensors go
  // over a bfloat16 wire. Throws error (CONFIG) for an option that is no number.
  tuning_table(const selection::configuration& rules, isthmus_platform platform, int ranks, isthmus_wire wire);

  isthmus_shots shots(isthmus_datatype datatype, std::uint64_t wire_bytes) const;
  bool bfloat16_wire(isthmus_datatype datatype, std::uint64_t count) const {
    return datatype == ISTHMUS_FLOAT32 && count >= m_bf16_elements;
  }

 private:
  struct step {
    std::uint64_t begin_bytes;
    isthmus_shots shots;
  };
  std::array<std::vector<step>, ISTHMUS_DATATYPE_COUNT> m_steps;
  std::uint64_t m_bf16_elements;
};

}  // namespace isthmus::tensor_parallel
