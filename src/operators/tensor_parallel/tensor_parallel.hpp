// Allreduce over the devices of one process without a communicator: what isthmus/tensor_parallel.h promises.
#pragma once

#include <isthmus/tensor_parallel.h>

namespace isthmus::tensor_parallel {

// Throws error.
isthmus_tensor_parallel init(int n, const isthmus_device* devices, const isthmus_stream* streams,
                             const isthmus_tensor_parallel_options* user_options);

// False: the thread's last error says why, and no tensor was touched. One thread at a time per handle.
bool allreduce(isthmus_tensor_parallel handle, void* const* pointers, uint64_t count, isthmus_datatype datatype,
               uint64_t active);

void release(isthmus_tensor_parallel handle);

}  // namespace isthmus::tensor_parallel
