// Removal of mappings that only Isthmus uses.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace isthmus {

// Unmaps memory that was never passed to another library. Calls the kernel directly, because UCX, which MPICH contains,
// intercepts munmap and stores a record of each call until it next registers memory. A program that communicates only
// through shared memory never registers any.
inline void unmap_internal(void* begin, std::size_t bytes) noexcept { ::syscall(SYS_munmap, begin, bytes); }

}  // namespace isthmus
