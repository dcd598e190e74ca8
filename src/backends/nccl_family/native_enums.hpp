// Conversions from Isthmus enumerations to native ones. Values without a native counterpart are unsupported.
// Enumerations are never cast.
#pragma once

#include <isthmus/types.h>

#include <optional>

#include "native_api.hpp"

namespace isthmus::nccl_family {

// Returns the native datatype for reductions.
constexpr std::optional<int> native_datatype_of(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_INT8: return native_int8;
    case ISTHMUS_INT16: return std::nullopt;
    case ISTHMUS_INT32: return native_int32;
    case ISTHMUS_INT64: return native_int64;
    case ISTHMUS_UINT8: return native_uint8;
    case ISTHMUS_UINT16: return std::nullopt;
    case ISTHMUS_UINT32: return native_uint32;
    case ISTHMUS_UINT64: return native_uint64;
    case ISTHMUS_FLOAT16: return native_float16;
    case ISTHMUS_BFLOAT16: return native_bfloat16;
    case ISTHMUS_FLOAT32: return native_float32;
    case ISTHMUS_FLOAT64: return native_float64;
    case ISTHMUS_FLOAT8_E4M3: return native_float8_e4m3;
    case ISTHMUS_FLOAT8_E5M2: return native_float8_e5m2;
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  return std::nullopt;
}

constexpr bool is_float8(isthmus_datatype datatype) {
  return datatype == ISTHMUS_FLOAT8_E4M3 || datatype == ISTHMUS_FLOAT8_E5M2;
}

constexpr std::optional<int> native_op_of(isthmus_reduction_op op) {
  switch (op) {
    case ISTHMUS_SUM: return native_sum;
    case ISTHMUS_PROD: return native_prod;
    case ISTHMUS_MIN: return native_min;
    case ISTHMUS_MAX: return native_max;
    case ISTHMUS_AVG: return native_avg;
    case ISTHMUS_REDUCTION_OP_COUNT: break;
  }
  return std::nullopt;
}

// Isthmus status, name and hint for a native result code.
struct result_info {
  isthmus_status status;
  const char* name;
  const char* hint;
};

}  // namespace isthmus::nccl_family
