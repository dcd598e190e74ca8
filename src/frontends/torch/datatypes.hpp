// Mapping of PyTorch's dtypes and reductions to those of Isthmus.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace isthmus::torch_backend {

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

}  // namespace isthmus::torch_backend
