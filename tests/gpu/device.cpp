#include "device.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace gpu {
namespace {

void check(cudaError_t error, const char* function) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(function) + ": " + cudaGetErrorString(error));
}
cudaStream_t as_stream(void* native) { return static_cast<cudaStream_t>(native); }

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

stream::stream(int device) {
  use_device(device);
  cudaStream_t handle = nullptr;
  check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  m_stream = handle;
}
stream::~stream() { cudaStreamDestroy(as_stream(m_stream)); }
void stream::synchronize() const { check(cudaStreamSynchronize(as_stream(m_stream)), "cudaStreamSynchronize"); }

buffer::buffer(std::size_t bytes) : m_bytes(bytes) {
  if (bytes == 0) return;
  void* handle = nullptr;
  check(cudaMalloc(&handle, bytes), "cudaMalloc");
  m_data = static_cast<std::byte*>(handle);
}
buffer::~buffer() { cudaFree(m_data); }

void buffer::write(std::span<const std::byte> from, const stream& queue, std::size_t offset) {
  if (from.empty()) return;
  check(
      cudaMemcpyAsync(m_data + offset, from.data(), from.size(), cudaMemcpyDefault, as_stream(queue.native())),
      "cudaMemcpyAsync");
  queue.synchronize();
}

std::vector<std::byte> buffer::read(const stream& queue) const {
  std::vector<std::byte> host(m_bytes);
  if (m_bytes == 0) return host;
  check(cudaMemcpyAsync(host.data(), m_data, m_bytes, cudaMemcpyDefault, as_stream(queue.native())),
        "cudaMemcpyAsync");
  queue.synchronize();
  return host;
}

}  // namespace gpu
