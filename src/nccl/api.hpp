// Declarations of the C interface that NCCL, RCCL and oneCCL 2022 share, for the backends, the NCCL front end and the
// benchmarks. Streams and communicators are untyped pointers, and enumerations are ints. The vendor headers are not
// used, because no Linux distribution ships that of RCCL, and that of NCCL needs CUDA. If nccl.h is installed,
// abi_check.cpp compares these declarations with it.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <climits>
#include <cstddef>
#include <optional>
#include <string>

namespace isthmus::nccl {

using native_comm = void*;
using native_stream = void*;
using native_window = void*;

inline constexpr int window_symmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
inline constexpr int split_no_color = -1;   // NCCL_SPLIT_NOCOLOR

enum native_result : int {
  native_success = 0,
  native_unhandled_device_error = 1,
  native_system_error = 2,
  native_internal_error = 3,
  native_invalid_argument = 4,
  native_invalid_usage = 5,
  native_remote_error = 6,
  native_in_progress = 7
};

// ---- datatypes and reduction operations ----

enum native_op : int { native_sum = 0, native_prod = 1, native_max = 2, native_min = 3, native_avg = 4 };

enum native_datatype : int {
  native_int8 = 0,
  native_uint8 = 1,
  native_int32 = 2,
  native_uint32 = 3,
  native_int64 = 4,
  native_uint64 = 5,
  native_float16 = 6,
  native_float32 = 7,
  native_float64 = 8,
  native_bfloat16 = 9,
  native_float8_e4m3 = 10,
  native_float8_e5m2 = 11
};

// Isthmus equivalents of the native values, indexed by the native value. User-defined operations have none.
inline constexpr std::array isthmus_datatypes = {ISTHMUS_INT8,     ISTHMUS_UINT8,       ISTHMUS_INT32,
                                                 ISTHMUS_UINT32,   ISTHMUS_INT64,       ISTHMUS_UINT64,
                                                 ISTHMUS_FLOAT16,  ISTHMUS_FLOAT32,     ISTHMUS_FLOAT64,
                                                 ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3, ISTHMUS_FLOAT8_E5M2};
inline constexpr std::array isthmus_ops = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN, ISTHMUS_AVG};
inline constexpr int datatype_count = static_cast<int>(isthmus_datatypes.size());
inline constexpr int op_count = static_cast<int>(isthmus_ops.size());

template <typename Isthmus, std::size_t Size>
constexpr std::optional<int> native_value_of(Isthmus value, const std::array<Isthmus, Size>& isthmus_values) {
  for (std::size_t native = 0; native < Size; ++native)
    if (isthmus_values[native] == value) return static_cast<int>(native);
  return std::nullopt;
}

// Native equivalents for reductions. There is none for 16-bit integers.
constexpr std::optional<int> native_datatype_of(isthmus_datatype datatype) {
  return native_value_of(datatype, isthmus_datatypes);
}
constexpr std::optional<int> native_op_of(isthmus_reduction_op op) { return native_value_of(op, isthmus_ops); }

constexpr bool is_float8(isthmus_datatype datatype) {
  return datatype == ISTHMUS_FLOAT8_E4M3 || datatype == ISTHMUS_FLOAT8_E5M2;
}

// ---- structures ----

struct native_unique_id {
  char internal[128];
};

// ncclConfig_t as of version 2.18. Later versions only append fields and use `size` to determine which fields
// are present, so this layout works with all of them.
struct native_config {
  std::size_t size = sizeof(native_config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21801;
  int blocking = INT_MIN;  // 0: calls return before they complete; INT_MIN selects the library's default
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// ---- functions ----

// Function types of the collectives and messages.
using data_movement = int(const void*, void*, std::size_t, int datatype, native_comm, native_stream);
using rooted_data_movement = int(const void*, void*, std::size_t, int datatype, int root, native_comm,
                                 native_stream);
using reduction = int(const void*, void*, std::size_t, int datatype, int op, native_comm, native_stream);
using rooted_reduction = int(const void*, void*, std::size_t, int datatype, int op, int root, native_comm,
                             native_stream);
using send_message = int(const void*, std::size_t, int datatype, int peer, native_comm, native_stream);
using recv_message = int(void*, std::size_t, int datatype, int peer, native_comm, native_stream);

template <typename Function>
struct add_configuration;
template <typename... Arguments>
struct add_configuration<int(Arguments...)> {
  using type = int(Arguments..., const void* configuration);
};
// The type of the variant with per-call configuration.
template <typename Function>
using configured = typename add_configuration<Function>::type;

// The functions of a loaded library. Those that the library lacks are null.
struct native_functions {
#define NATIVE_FUNCTION(Name, member, requirement, result, ...) result(*member) __VA_ARGS__ = nullptr;
#define NATIVE_COLLECTIVE(Name, member, requirement, COLLECTIVE, shape) \
  shape* member = nullptr;                                              \
  configured<shape>* member##_configured = nullptr;
#define NATIVE_MESSAGE(Name, member, requirement, COLLECTIVE, shape) shape* member = nullptr;
#include "nccl/functions.def"

  // Looks up all functions with find("<prefix><Name>"), which returns NULL for a missing function. Returns the name of
  // the first missing required function, or "". `is_nccl`: the library is NCCL or RCCL, not oneCCL.
  template <typename Find>
  std::string load(const std::string& prefix, bool is_nccl, Find&& find);
};

template <typename Find>
std::string native_functions::load(const std::string& prefix, bool is_nccl, Find&& find) {
  enum class requirement_kind { common, nccl, optional };
  std::string first_missing;
  const auto load_one = [&](auto& function, const char* name, requirement_kind requirement) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(prefix + name));
    const bool is_required =
        requirement == requirement_kind::common || (requirement == requirement_kind::nccl && is_nccl);
    if (function == nullptr && is_required && first_missing.empty()) first_missing = prefix + name;
  };
#define NATIVE_FUNCTION(Name, member, requirement, ...) load_one(member, #Name, requirement_kind::requirement);
#define NATIVE_COLLECTIVE(Name, member, requirement, ...) \
  load_one(member, #Name, requirement_kind::requirement); \
  load_one(member##_configured, #Name "Config", requirement_kind::optional);
#define NATIVE_MESSAGE NATIVE_FUNCTION
#include "nccl/functions.def"
  // The spelling of RCCL and oneCCL.
  if (all_to_all == nullptr) load_one(all_to_all, "AllToAll", requirement_kind::optional);
  return first_missing;
}

// Formats a version code of ncclGetVersion, for example 22809 as "2.28.9".
inline std::string format_version(int version) {
  // NCCL encodes versions as major*10000 + minor*100 + patch. Releases up to 2.8 used major*1000.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version % 10000 / 100 : version % 1000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace isthmus::nccl
