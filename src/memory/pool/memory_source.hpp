// Where whole blocks of one device's memory come from: a driver, UMF's provider of it, or a front end's
// allocator. What a pool cuts into pieces, and what large blocks are taken from directly.
#pragma once

#include <isthmus/memory.h>

#include <cstdint>
#include <memory>
#include <string>

namespace isthmus {

class memory_source {
 public:
  virtual ~memory_source() = default;

  // A block of bytes > 0, aligned to 256. Throws error: OUT_OF_MEMORY where that is the reason, else BACKEND
  // with the native code. Any thread.
  virtual void* allocate(std::uint64_t bytes) = 0;

  // Gives a block back; `bytes` as it was asked for. Throws error. Any thread.
  virtual void free(void* pointer, std::uint64_t bytes) = 0;

  // Blocks whose size changes by mapping pages, as device_driver says. A source without them throws
  // UNSUPPORTED.
  virtual void* allocate_mapped(std::uint64_t bytes);
  virtual void* resize_mapped(void* pointer, std::uint64_t old_bytes, std::uint64_t bytes);
  virtual void free_mapped(void* pointer, std::uint64_t bytes);
};

// nullptr, and why in `reason`, where this machine or process has no such source. `native_context` is as in
// isthmus_memory_options.
std::unique_ptr<memory_source> open_umf_source(isthmus_device device, void* native_context,
                                               std::string& reason);
std::unique_ptr<memory_source> open_direct_source(isthmus_device device, void* native_context,
                                                  std::string& reason);
std::unique_ptr<memory_source> open_registered_source(isthmus_device device, const std::string& name,
                                                      std::string& reason);

// Keeps the functions of a front end for `device`; the first of a name stays.
void register_source(isthmus_device device, const isthmus_memory_provider& provider);

// "cuda:1", as messages name a device.
std::string format_device(isthmus_device device);

}  // namespace isthmus
