// Every collective of THE TABLE in terms of the native functions: directly where the library has it, else
// from grouped sends and receives. Each function only enqueues.
#pragma once

#include <isthmus/types.h>

#include "device/runtime.hpp"
#include "native_api.hpp"

namespace isthmus::nccl_family {

// The first native function that failed, and its code. A group that was opened is always closed.
struct enqueue_result {
  int result = native_success;
  const char* function = "";
  bool is_device_error = false;  // `result` is the device runtime's code

  bool ok() const { return result == native_success; }
  void record(int code, const char* name) {
    if (result == native_success && code != native_success) {
      result = code;
      function = name;
    }
  }
};

// What one operation is enqueued with.
struct enqueue_target {
  const native_functions& functions;
  const device_runtime* runtime;  // null: the library has no device runtime of its own (oneCCL)
  native_comm comm;
  int rank;
  int size;
  void* barrier_byte;  // one byte of device memory
  int device;
};

// Memory that an operation uses until the stream has passed it; released after the group has started.
struct scratch_memory {
  void* pointer = nullptr;
  native_stream stream = nullptr;
};

// Enqueues one operation. `kept` gets the scratch that the caller releases once the group, if any, has
// started. The operation has been validated and is supported.
enqueue_result enqueue_collective(const enqueue_target& target, const isthmus_operation& operation, scratch_memory& scratch);

}  // namespace isthmus::xccl
