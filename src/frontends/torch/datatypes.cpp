#include "datatypes.hpp"

#include <c10/core/ScalarType.h>

namespace isthmus::torch_backend {
namespace {

using kind = c10d::ReduceOp::RedOpType;

std::optional<isthmus_reduction_op> plain_op(kind op) {
  switch (op) {
    case kind::SUM:
    case kind::PREMUL_SUM: return ISTHMUS_SUM;
    case kind::AVG: return ISTHMUS_AVG;
    case kind::PRODUCT: return ISTHMUS_PROD;
    case kind::MIN: return ISTHMUS_MIN;
    case kind::MAX: return ISTHMUS_MAX;
    case kind::BAND:
    case kind::BOR:
    case kind::BXOR:
    case kind::UNUSED: return std::nullopt;
  }
  return std::nullopt;
}

// On bytes that are 0 or 1.
std::optional<isthmus_reduction_op> bool_op(kind op) {
  switch (op) {
    case kind::SUM:
    case kind::MAX:
    case kind::BOR: return ISTHMUS_MAX;
    case kind::PRODUCT:
    case kind::MIN:
    case kind::BAND: return ISTHMUS_MIN;
    case kind::AVG:
    case kind::BXOR:
    case kind::PREMUL_SUM:
    case kind::UNUSED: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<isthmus_datatype> same_datatype(at::ScalarType type) {
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
    default:  // bool, complex, quantized and sub-byte types, and whatever a later PyTorch adds
      return std::nullopt;
  }
}

wire_type moved_as(at::ScalarType type) {
  if (const auto same = same_datatype(type)) return {*same, 1};
  return {ISTHMUS_UINT8, c10::elementSize(type)};
}

std::optional<reduction> reduced_as(at::ScalarType type, const c10d::ReduceOp& op, const char*& reason) {
  const kind wanted = op;
  if (type == at::kBool) {
    reason = "bool has no such reduction in Isthmus";
    const auto image = bool_op(wanted);
    return image ? std::optional(reduction{{ISTHMUS_UINT8, 1}, *image}) : std::nullopt;
  }
  std::uint64_t per_element = 1;
  if (c10::isComplexType(type)) {
    reason = "this reduction of complex numbers is not one of their parts";
    if (!c10d::isComplexViewAsRealAllowed(op)) return std::nullopt;
    type = c10::toRealValueType(type);
    per_element = 2;
  }
  const auto image = plain_op(wanted);
  reason = "Isthmus has no bitwise reductions";
  if (!image) return std::nullopt;
  const auto same = same_datatype(type);
  reason = "Isthmus does not reduce this datatype";
  return same ? std::optional(reduction{{*same, per_element}, *image}) : std::nullopt;
}

}  // namespace isthmus::torch_backend
