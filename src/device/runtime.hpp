// The functions of the CUDA and HIP runtimes that plug-ins call, found at run time. Vendors' collective
// libraries go by the runtime's current device, and its streams and memory are the program's. Both runtimes
// have the same names behind different prefixes and the same shapes, so one table serves both;
// abi_check_cudart.cpp and abi_check_runtime.cpp compare it with the real headers. The core itself works on
// drivers (driver.hpp).
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
inline constexpr int cuda_capability_major =
    75;  // an attribute; HIP numbers attributes differently in every version

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
  int (*memcpy_async)(void* to, const void* from, std::size_t bytes, int kind, void* stream) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_get_flags)(void* stream, unsigned* flags) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;

  // "" or why this machine has no such runtime. `library` is a path that replaces the search, `site_packages` a
  // folder to look in first; both may be null.
  std::string load(isthmus_platform platform, const char* library, const char* site_packages);

  // ---- held streams, after load_wait_functions --------------------------------------------------------------------
  // "" or why this machine's streams can't wait for words. `driver` replaces the search for CUDA's driver; may
  // be null.
  std::string load_wait_functions(isthmus_platform platform, const char* driver);
  // Holds the stream, on the device, until *word >= value; `word` is pinned host memory. No host thread waits.
  // With `flush` the stream then sees what a network adapter wrote into device memory before that.
  int wait_value(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const;
  // Elsewhere such writes need no flush, or the device takes none.
  bool can_flush(int device) const;

 private:
  int (*m_cuda_attribute)(int* value, int attribute, int device) = nullptr;
  int (*m_cuda_wait)(void* stream, std::uint64_t address, std::uint32_t value, unsigned flags) = nullptr;
  int (*m_hip_wait)(void* stream, void* address, std::uint32_t value, unsigned flags,
                    std::uint32_t mask) = nullptr;
};

}  // namespace isthmus
