#include <cuda_runtime_api.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "place.hpp"

namespace fused_test {
namespace {

void check(cudaError_t error, const char* function) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(function) + ": " + cudaGetErrorString(error));
}
cudaStream_t as_stream(void* native) { return static_cast<cudaStream_t>(native); }

isthmus_platform s_platform = ISTHMUS_PLATFORM_CUDA;

}  // namespace

isthmus_platform platform() { return s_platform; }
void use_platform(isthmus_platform new_platform) {
  // Memory and streams are still allocated by CUDA functions. Only the stand-ins share them with HIP.
  if (std::getenv("ISTHMUS_HIP_RUNTIME_LIBRARY") == nullptr)
    throw std::runtime_error("--platform needs the stand-ins");
  s_platform = new_platform;
}
int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
void* create_stream(int device) {
  use_device(device);
  cudaStream_t handle = nullptr;
  check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return handle;
}
void destroy_stream(void* stream) { cudaStreamDestroy(as_stream(stream)); }
void synchronize(void* stream) { check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize"); }
void* allocate(std::size_t bytes) {
  void* handle = nullptr;
  check(cudaMalloc(&handle, bytes), "cudaMalloc");
  return handle;
}
void release(void* pointer) { cudaFree(pointer); }
void copy(void* to, const void* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)), "cudaMemcpyAsync");
  synchronize(stream);
}

}  // namespace fused_test
