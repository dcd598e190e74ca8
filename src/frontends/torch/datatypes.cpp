#include "datatypes.hpp"

#include <c10/core/ScalarType.h>

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
    if (!c10d::isComplexViewAsRealAllowed(op)) return std::nullopt;
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

}  // namespace isthmus::torch_backend
