// Where the matrices of this program live: host memory, or devices of CUDA (real ones or the stand-ins, which
// HIP's names reach, too).
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace fused_test {

isthmus_platform platform();
// Before anything else: the platform of the communicators, where the program has a choice. Throws where not.
void use_platform(isthmus_platform chosen);
int device_count();
void use_device(int device);
void* create_stream(int device);
void destroy_stream(void* stream);
void synchronize(void* stream);
void* allocate(std::size_t bytes);
void release(void* pointer);
// In the stream's order; returns when it is done.
void copy(void* to, const void* from, std::size_t bytes, void* stream);

}  // namespace fused_test
