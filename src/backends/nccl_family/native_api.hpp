// Declarations of the C ABI that NCCL, RCCL and oneCCL 2022 share. Streams and communicators are untyped
// pointers, and enumerations are ints. The vendor headers are not used, because no Linux distribution ships
// that of RCCL, and that of NCCL needs CUDA. If nccl.h is installed, abi_check_nccl.cpp compares these
// declarations with it.
#pragma once

#include <cstddef>
#include <string>

#include "base/dynamic_library.hpp"

namespace isthmus::nccl_family {

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

// Functions with the same signature in all three libraries.
struct native_functions {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(void* id) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(native_comm comm) = nullptr;
  int (*comm_destroy)(native_comm comm) = nullptr;
  int (*comm_split)(native_comm comm, int color, int key, native_comm* child, void* config) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
#define NATIVE_COLLECTIVE(member, Name, parameters) int(*member) parameters = nullptr;
#define NATIVE_OPTIONAL_COLLECTIVE NATIVE_COLLECTIVE
#include "native_collectives.def"
  // NCCL and RCCL only; null in other libraries.
  int (*comm_abort)(native_comm comm) = nullptr;
  int (*comm_get_async_error)(native_comm comm, int* result) = nullptr;
  int (*comm_count)(native_comm comm, int* count) = nullptr;
  int (*comm_user_rank)(native_comm comm, int* rank) = nullptr;
  // Registered buffers need version 2.19, windows (a collective call) 2.27.
  int (*comm_register)(native_comm comm, void* buffer, std::size_t bytes, void** handle) = nullptr;
  int (*comm_deregister)(native_comm comm, void* handle) = nullptr;
  int (*window_register)(native_comm comm, void* buffer, std::size_t bytes, native_window* window,
                         int flags) = nullptr;
  int (*window_deregister)(native_comm comm, native_window window) = nullptr;

  // Looks up all functions under the name `prefix` + name. Returns the name of the first missing required
  // function, or "".
  std::string load(const dynamic_library& library, const std::string& prefix, bool needs_abort);
};

// Formats a version code of ncclGetVersion, for example 22809 as "2.28.9".
std::string format_version(int version);

}  // namespace isthmus::nccl_family
