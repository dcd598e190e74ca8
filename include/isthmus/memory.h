// Memory that communication likes best. docs/host_backend.md has what it gains.
#ifndef ISTHMUS_MEMORY_H
#define ISTHMUS_MEMORY_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// A block of the symmetric heap: collective over the communicator, the same `bytes` on every rank, and
// mapped into every peer that can (on the host platform: shared memory). Collectives whose buffers lie
// in it are not staged. The pointer is aligned to at least 256 bytes (page-aligned on the host), its
// contents are undefined. Blocks until all ranks have called. bytes == 0 gives NULL.
ISTHMUS_API isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                             void** pointer);

// Releases a block: local, does not wait for other ranks, which keep their own blocks. The caller makes
// sure that no operation still uses it. NULL is allowed; a foreign pointer or a second free is an error.
// Blocks that are still live when the communicator is destroyed are released with it.
ISTHMUS_API isthmus_status isthmus_memory_free(isthmus_communicator communicator, void* pointer);

#ifdef __cplusplus
}
#endif
#endif
