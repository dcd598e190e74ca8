// Copies past the cache, for what this rank will not read again soon.
#pragma once

#include <cstddef>

namespace isthmus::host {

// memcpy whose stores do not load or keep the destination in the cache where the processor can do that.
// The stores are complete (ordered before later ones) when it returns.
void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept;

}  // namespace isthmus::host
