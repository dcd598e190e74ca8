// C entry points of tensor_parallel.h.
#include "operators/tensor_parallel/tensor_parallel.hpp"

#include "base/error.hpp"

namespace engines = isthmus::tensor_parallel;

isthmus_status isthmus_tensor_parallel_create(int n, const isthmus_device* devices,
                                              const isthmus_stream* streams,
                                              const isthmus_tensor_parallel_options* options,
                                              isthmus_tensor_parallel* handle) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "tensor_parallel_create", "handle", handle,
                              "pass the address of the variable that receives the handle");
    *handle = nullptr;
    *handle = engines::create(n, devices, streams, options);
  });
}

isthmus_status isthmus_tensor_parallel_allreduce(isthmus_tensor_parallel handle, void* const* pointers,
                                                 uint64_t count, isthmus_datatype datatype, uint64_t active) {
  return engines::allreduce(handle, pointers, count, datatype, active);
}

isthmus_status isthmus_tensor_parallel_destroy(isthmus_tensor_parallel handle) {
  return isthmus::guard([&] { engines::destroy(handle); });
}
