// Allocator of whole memory blocks of one device: a driver, a UMF provider or an allocator that a front end
// registered. Pools divide its blocks; large blocks are allocated from it directly.
//
// Thread safety: all functions can be called from any thread.
#pragma once

#include <isthmus/memory.h>

#include <cstdint>
#include <memory>
#include <string>

namespace isthmus {

class memory_source {
 public:
  virtual ~memory_source() = default;

  // Allocates a block of bytes > 0, aligned to 256. Throws error (OUT_OF_MEMORY, otherwise BACKEND with the
  // native code).
  virtual void* allocate(std::uint64_t bytes) = 0;

  // Frees a block; `bytes` is the size that was requested. Throws error.
  virtual void free(void* pointer, std::uint64_t bytes) = 0;

  // Blocks that are resized by mapping pages, see device_driver. Throws error (UNSUPPORTED) if the
  // source has none.
  virtual void* allocate_mapped(std::uint64_t bytes);
  virtual void* resize_mapped(void* pointer, std::uint64_t old_bytes, std::uint64_t bytes);
  virtual void free_mapped(void* pointer, std::uint64_t bytes);
};

// These functions return nullptr and set `reason` if the source is not available in this process.
// `native_context`: see isthmus_memory_options.
std::unique_ptr<memory_source> open_umf_source(isthmus_device device, void* native_context,
                                               std::string& reason);
std::unique_ptr<memory_source> open_direct_source(isthmus_device device, void* native_context,
                                                  std::string& reason);
std::unique_ptr<memory_source> open_registered_source(isthmus_device device, const std::string& name,
                                                      std::string& reason);

// Registers the allocator of a front end for `device`. The first registration of a name is kept.
void register_source(isthmus_device device, const isthmus_memory_provider& provider);

}  // namespace isthmus
