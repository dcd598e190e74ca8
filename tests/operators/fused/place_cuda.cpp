#include <cuda_runtime_api.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "place.hpp"

namespace fused_test {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
cudaStream_t as_stream(void* native) { return static_cast<cudaStream_t>(native); }

isthmus_platform s_platform = ISTHMUS_PLATFORM_CUDA;

}  // namespace

isthmus_platform platform() { return s_platform; }
void use_platform(isthmus_platform chosen) {
  // Memory and streams stay CUDA's here, which only a stand-in has in common with HIP.
  if (std::getenv("ISTHMUS_HIP_RUNTIME_LIBRARY") == nullptr)
    throw std::runtime_error("--platform needs the stand-ins");
  s_platform = chosen;
}
int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
void* create_stream(int device) {
  use_device(device);
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return made;
}
void destroy_stream(void* stream) { cudaStreamDestroy(as_stream(stream)); }
void synchronize(void* stream) { check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize"); }
void* allocate(std::size_t bytes) {
  void* made = nullptr;
  check(cudaMalloc(&made, bytes), "cudaMalloc");
  return made;
}
void release(void* pointer) { cudaFree(pointer); }
void copy(void* to, const void* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)), "cudaMemcpyAsync");
  synchronize(stream);
}

}  // namespace fused_test
