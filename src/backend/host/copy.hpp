// Copies, through the cache or past it.
#pragma once

#include <cstddef>
#include <cstring>

namespace isthmus::host {

// memcpy whose stores do not load or keep the destination in the cache where the processor can do that.
// The stores are ordered before later ones only by streaming_fence.
void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept;
void streaming_fence() noexcept;

enum class store { cached, streaming };

// Nothing to do when source and destination are the same: in place.
inline void copy(void* destination, const void* source, std::size_t bytes, store how) noexcept {
  if (destination == source || bytes == 0) return;
  if (how == store::streaming)
    copy_streaming(destination, source, bytes);
  else
    std::memcpy(destination, source, bytes);
}

}  // namespace isthmus::host
