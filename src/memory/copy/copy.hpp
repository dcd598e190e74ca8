// Copies between devices of one platform, and between a device and the host.
#pragma once

#include <isthmus/memory.h>

#include <cstdint>
#include <span>

namespace isthmus {

struct copy_request {
  void* destination;
  isthmus_device destination_device;
  const void* source;
  isthmus_device source_device;
  std::uint64_t bytes;
  isthmus_copy_path path = ISTHMUS_COPY_AUTO;
  bool push = false;
  std::span<void* const> wait_events;
  void* done_event = nullptr;
  void* stream = nullptr;
};

// Implements isthmus_memory_copy. Throws error (INVALID_ARGUMENT, UNSUPPORTED, or an error of the driver).
void copy_memory(const copy_request& request);

}  // namespace isthmus
