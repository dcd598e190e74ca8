// What staging needs of the CUDA or HIP runtime and driver, found at run time.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace isthmus::hybrid {

struct staging_runtime {
  int (*set_device)(int device) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_get_flags)(void* stream, unsigned* flags) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*host_alloc)(void** pointer, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_free)(void* pointer) = nullptr;
  int (*memcpy_async)(void* to, const void* from, std::size_t bytes, int kind, void* stream) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;

  // Holds the stream, on the device, until *word >= value; `word` is pinned host memory. No host thread waits.
  // With `flush` the stream then sees what a network adapter wrote into device memory before that.
  int hold(void* stream, std::uint32_t* word, std::uint32_t value, bool flush) const;
  // Elsewhere such writes need no flush, or the device takes none.
  bool can_flush(int device) const;

  // "" or why this machine can't stage for that platform. `library` and `driver` override the search; may be
  // null.
  std::string load(isthmus_platform platform, const char* library, const char* driver);

 private:
  int (*m_cuda_attribute)(int* value, int attribute, int device) = nullptr;
  int (*m_cuda_wait)(void* stream, std::uint64_t address, std::uint32_t value, unsigned flags) = nullptr;
  int (*m_hip_wait)(void* stream, void* address, std::uint32_t value, unsigned flags,
                    std::uint32_t mask) = nullptr;
};

inline constexpr int runtime_not_ready = 600;  // cudaErrorNotReady, hipErrorNotReady
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_without_timing = 2;

}  // namespace isthmus::hybrid
