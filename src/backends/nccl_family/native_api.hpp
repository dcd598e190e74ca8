// The C ABI that NCCL, RCCL and oneCCL's second generation share, declared once with neutral types: the
// device's stream and the library's communicator are pointers, enumerations are ints. RCCL has no header
// in any Linux distribution and NCCL's needs CUDA, so this file replaces both; abi_check_*.cpp compares
// it with the real headers wherever they are installed.
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

// Functions with the same shape in all three libraries.
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
  // NCCL and RCCL only; null in a library without them.
  int (*comm_abort)(native_comm comm) = nullptr;
  int (*comm_get_async_error)(native_comm comm, int* result) = nullptr;
  int (*comm_count)(native_comm comm, int* count) = nullptr;
  int (*comm_user_rank)(native_comm comm, int* rank) = nullptr;
  // Buffers that the library may use in place: 2.19 and newer; windows, collective: 2.27 and newer.
  int (*comm_register)(native_comm comm, void* buffer, std::size_t bytes, void** handle) = nullptr;
  int (*comm_deregister)(native_comm comm, void* handle) = nullptr;
  int (*window_register)(native_comm comm, void* buffer, std::size_t bytes, native_window* window,
                         int flags) = nullptr;
  int (*window_deregister)(native_comm comm, native_window window) = nullptr;

  // Looks every name up behind `prefix`. Returns the first missing one that is needed, or "".
  std::string load(const dynamic_library& library, const std::string& prefix, bool needs_abort);
};

// Version codes, as ncclGetVersion gives them, in words.
std::string format_version(int version);

}  // namespace isthmus::xccl
