// How PyTorch's element types and reductions look in THE TABLE.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace isthmus::torch_backend {

// Elements as Isthmus counts them: `per_element` of `type` for one of PyTorch's.
struct wire_type {
  isthmus_datatype type;
  std::uint64_t per_element;
};

// The datatype with the same arithmetic, or none.
std::optional<isthmus_datatype> matching_datatype(at::ScalarType type);

// For collectives that only move elements: whatever has no image travels as bytes.
wire_type movement_type(at::ScalarType type);

struct reduction_mapping {
  wire_type wire;
  isthmus_reduction_op op;
};

// For collectives that combine elements. None, with the reason, for what Isthmus cannot reduce. bool is reduced
// as the bytes 0 and 1 (sum: or, product: and), a complex number as two reals where that is the same.
// PREMUL_SUM counts as sum: the caller has multiplied.
std::optional<reduction_mapping> find_reduction(at::ScalarType type, const c10d::ReduceOp& op, const char*& reason);

}  // namespace isthmus::torch_backend
