// C entry points of tensor_parallel.h.
#include "operators/tensor_parallel/tensor_parallel.hpp"

#include "base/error.hpp"

namespace engines = isthmus::tensor_parallel;

isthmus_tensor_parallel isthmus_tensor_parallel_init(int n, const isthmus_device* devices,
                                                     const isthmus_stream* streams,
                                                     const isthmus_tensor_parallel_options* options) {
  isthmus_tensor_parallel handle = nullptr;
  isthmus::guard([&] { handle = engines::init(n, devices, streams, options); });
  return handle;
}

bool isthmus_tensor_parallel_allreduce(isthmus_tensor_parallel handle, void* const* pointers, uint64_t count,
                                       isthmus_datatype datatype, uint64_t active) {
  return engines::allreduce(handle, pointers, count, datatype, active);
}

void isthmus_tensor_parallel_free(isthmus_tensor_parallel handle) { engines::release(handle); }
