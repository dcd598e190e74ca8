// Implements isthmus/tensor_parallel.h: allreduce over the devices of one process without a communicator.
#pragma once

#include <isthmus/tensor_parallel.h>

namespace isthmus::tensor_parallel {

// Errors: throws error.
isthmus_tensor_parallel create(int n, const isthmus_device* devices, const isthmus_stream* streams,
                               const isthmus_tensor_parallel_options* user_options);

// Errors: sets the thread's last error and returns its status. No tensor has been modified in this case.
// Thread safety: one thread at a time per handle.
isthmus_status allreduce(isthmus_tensor_parallel handle, void* const* pointers, uint64_t count,
                         isthmus_datatype datatype, uint64_t active);

void destroy(isthmus_tensor_parallel handle);

}  // namespace isthmus::tensor_parallel
