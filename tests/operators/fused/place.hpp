// Memory for the matrices of this program: host memory, or CUDA devices. CUDA devices are real ones or the
// stand-ins, which also implement HIP.
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace fused_test {

isthmus_platform platform();
// Sets the platform of the communicators. Must be called first.
// Errors: throws if the program supports only one platform.
void use_platform(isthmus_platform new_platform);
int device_count();
void use_device(int device);
void* create_stream(int device);
void destroy_stream(void* stream);
void synchronize(void* stream);
void* allocate(std::size_t bytes);
void release(void* pointer);
// Copies in stream order.
// Blocking: returns when the copy is complete.
void copy(void* to, const void* from, std::size_t bytes, void* stream);

}  // namespace fused_test
