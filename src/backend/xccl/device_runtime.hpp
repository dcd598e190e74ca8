// The few functions of the CUDA and HIP runtimes that the backend needs. Both have the same names behind
// different prefixes and the same shapes, so one table serves both; abi_check_cuda.cpp and
// abi_check_hip.cpp compare it with the real headers.
#pragma once

#include <cstddef>
#include <string>

#include "native_api.hpp"
#include "runtime/dynamic_library.hpp"

namespace isthmus::xccl {

inline constexpr int memcpy_default = 4;  // cudaMemcpyDefault, hipMemcpyDefault

struct device_runtime {
  int (*get_device_count)(int* count) = nullptr;
  int (*get_device)(int* device) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*device_get_pci_bus_id)(char* text, int capacity, int device) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_synchronize)() = nullptr;
  int (*malloc)(void** pointer, std::size_t bytes) = nullptr;
  int (*free)(void* pointer) = nullptr;
  int (*malloc_async)(void** pointer, std::size_t bytes, native_stream stream) = nullptr;
  int (*free_async)(void* pointer, native_stream stream) = nullptr;
  int (*memcpy_async)(void* to, const void* from, std::size_t bytes, int kind, native_stream stream) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;

  // Returns the first missing name, or "".
  std::string load(const dynamic_library& library, const std::string& prefix);
};

// Makes `device` current for the calling thread and restores what was current before.
class device_guard {
 public:
  device_guard(const device_runtime& runtime, int device) : m_runtime(runtime) {
    m_known = runtime.get_device(&m_before) == 0;
    m_error = runtime.set_device(device);
  }
  ~device_guard() {
    if (m_known) m_runtime.set_device(m_before);
  }
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;
  int error() const { return m_error; }

 private:
  const device_runtime& m_runtime;
  int m_before = 0;
  bool m_known = false;
  int m_error = 0;
};

}  // namespace isthmus::xccl
