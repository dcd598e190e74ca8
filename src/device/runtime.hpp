// Function table of the CUDA or HIP runtime for plug-ins. The runtime is loaded at run time. Plug-ins need the
// runtime because the vendors' collective libraries use its current device, and because the application's
// streams and memory belong to it. The core uses drivers instead (driver.hpp).
//
// The functions of both runtimes have the same names apart from a prefix, and the same signatures, so one table
// serves both. abi_check_cudart.cpp and abi_check_runtime.cpp compare it with the vendors' headers.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/scoped_device.hpp"

namespace isthmus {

inline constexpr int memcpy_default = 4;       // cudaMemcpyDefault, hipMemcpyDefault
inline constexpr int runtime_not_ready = 600;  // cudaErrorNotReady, hipErrorNotReady
inline constexpr unsigned non_blocking_stream = 1;
inline constexpr unsigned event_without_timing = 2;
// A device attribute. CUDA only: HIP's numbers differ between versions.
inline constexpr int cuda_capability_major = 75;

struct device_runtime {
  int (*get_device_count)(int* count) = nullptr;
  int (*get_device)(int* device) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*device_get_pci_bus_id)(char* text, int capacity, int device) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_synchronize)() = nullptr;
  int (*malloc)(void** pointer, std::size_t bytes) = nullptr;
  int (*free)(void* pointer) = nullptr;
  int (*malloc_async)(void** pointer, std::size_t bytes, void* stream) = nullptr;
  int (*free_async)(void* pointer, void* stream) = nullptr;
  int (*host_alloc)(void** pointer, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_free)(void* pointer) = nullptr;
  int (*memcpy_async)(void* destination, const void* source, std::size_t bytes, int kind,
                      void* stream) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_get_flags)(void* stream, unsigned* flags) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;

  // Returns "", or the reason why this machine has no such runtime. `library`: a path that replaces the search.
  // `site_packages`: a folder that is searched first. Both may be null.
  std::string load(isthmus_platform platform, const char* library, const char* site_packages);

  // ---- streams that wait for a word ---------------------------------------------------------------------
  // Must be called before the functions below. Returns "", or the reason why streams cannot wait for words on
  // this machine. `driver` replaces the search for the CUDA driver; may be null.
  std::string load_wait_functions(isthmus_platform platform, const char* driver);
  // Makes the stream wait, on the device, until *word >= value. `word` is pinned host memory. Does not block
  // the host. With `flush`, later work of the stream sees what a network adapter wrote to device memory before.
  int wait_value(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const;
  // True if the device supports such flushes. Other devices do not need flushes or do not support them.
  bool can_flush(int device) const;

 private:
  int (*m_cuda_attribute)(int* value, int attribute, int device) = nullptr;
  int (*m_cuda_wait_value)(void* stream, std::uint64_t address, std::uint32_t value, unsigned flags) = nullptr;
  int (*m_hip_wait_value)(void* stream, void* address, std::uint32_t value, unsigned flags,
                          std::uint32_t mask) = nullptr;
};

}  // namespace isthmus
