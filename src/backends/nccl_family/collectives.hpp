// Implements all collectives of the collective table with native functions. A collective that the library lacks
// is composed of grouped sends and receives. All functions only enqueue work.
#pragma once

#include <isthmus/types.h>

#include "device/gpu/functions.hpp"
#include "nccl/api.hpp"

namespace isthmus::nccl_family {

using namespace nccl;

// Isthmus status, name and hint for a native result code.
struct result_info {
  isthmus_status status;
  const char* name;
  const char* hint;
};

// The first native function that failed, and its result code.
struct enqueue_result {
  int result = native_success;
  const char* function = "";
  bool is_device_error = false;  // `result` is a code of the device runtime

  bool ok() const { return result == native_success; }
  void record(int code, const char* name) {
    if (result == native_success && code != native_success) {
      result = code;
      function = name;
    }
  }
};

// The native communicator that operations are enqueued on, and what they need.
struct enqueue_target {
  const native_functions& functions;
  const device_runtime* runtime;  // null if the library has no device runtime of its own (oneCCL)
  native_comm comm;
  int rank;
  int size;
  void* barrier_byte;  // one byte of device memory
  int device;
};

// Device memory that an operation uses until it completes on `stream`. The caller frees it after the enclosing
// group has been launched.
struct scratch_memory {
  void* pointer = nullptr;
  native_stream stream = nullptr;
};

// Enqueues one operation, which must be validated and supported. Sets `scratch` if the operation needs
// temporary memory; the caller frees it after the enclosing group, if any, has been launched.
enqueue_result enqueue_collective(const enqueue_target& target, const isthmus_operation& operation,
                                  scratch_memory& scratch);

}  // namespace isthmus::nccl_family
