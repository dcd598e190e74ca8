// Memory: blocks of the symmetric heap, which every rank can reach, and plain blocks of one device, which
// cost no host memory. docs/memory.md says where they come from. Functions may be called from any thread.
#ifndef ISTHMUS_MEMORY_H
#define ISTHMUS_MEMORY_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- symmetric heap: blocks of a communicator ---------------------------------------------------------

// A block of the symmetric heap: collective over the communicator, the same `bytes` on every rank, and
// mapped into every peer that can (on the host platform: shared memory). Collectives whose buffers lie
// in it are not staged. The pointer is aligned to at least 256 bytes (page-aligned on the host), its
// contents are undefined. Blocks until all ranks have called. bytes == 0 gives NULL.
ISTHMUS_API isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                             void** pointer);

// *peer = where this process reaches the byte of `rank`'s block that corresponds to `pointer`, a byte of a live
// block of the own rank: for the program's own kernels and copies, which order themselves. It is valid until
// this rank frees the block, and NULL where the rank is out of reach (another machine, a device without peer
// access). Local. INVALID_ARGUMENT for a rank that there is not and a pointer into no block.
ISTHMUS_API isthmus_status isthmus_memory_peer(isthmus_communicator communicator, const void* pointer, int rank,
                                               void** peer);

// Releases a block: local, does not wait for other ranks, which keep their own blocks. The caller makes
// sure that no operation still uses it. NULL is allowed; a foreign pointer or a second free is an error.
// Blocks that are still live when the communicator is destroyed are released with it.
ISTHMUS_API isthmus_status isthmus_memory_free(isthmus_communicator communicator, void* pointer);

// ---- plain memory of one device, without a communicator -----------------------------------------------
// A device tries its providers in order and every block remembers its own: "umf" (UMF's CUDA, Level Zero or
// operating-system provider), "direct" (the driver's own call), "sycl" (sycl::malloc_device, where a SYCL
// program registered it). [memory] in the configuration and ISTHMUS_MEMORY_* force or forbid them; both are
// read once in a process.

// Zero-initialise, set `struct_bytes = sizeof`, then what you need.
typedef struct isthmus_memory_options {
  size_t struct_bytes;
  int32_t unpooled;  // 1: a block of its own from the driver, which gets it back when it is freed
  // 1: a block that isthmus_memory_resize_device resizes by mapping pages, without a copy and without both
  // sizes at a time. It is never pooled. On cuda (virtual memory) only its own device reaches it, and those
  // that isthmus_memory_copy takes it to; it has no interprocess handle. UNSUPPORTED on hip and level_zero.
  int32_t growable;
  // level_zero: the ze_context_handle_t of the program that uses the block (a SYCL queue's), because a block
  // is of use in its own context only; it lives as long as the process. NULL: Isthmus' own. Else NULL.
  void* native_context;
} isthmus_memory_options;

// A block of `bytes` bytes on `device`, aligned to at least 256 bytes, contents undefined; the host can
// read it where the platform is host. `options` may be NULL. bytes == 0 gives NULL. OUT_OF_MEMORY lists
// what every provider said, and leaves all other blocks usable.
ISTHMUS_API isthmus_status isthmus_memory_allocate_device(isthmus_device device, uint64_t bytes,
                                                          const isthmus_memory_options* options,
                                                          void** pointer);

// Makes the block at *pointer (NULL: a new one) `bytes` bytes long and keeps its contents, as far as they
// fit; it may move, and keeps its native context and whether it is growable. The caller has waited for the work
// that uses it. On failure the block is as it was.
ISTHMUS_API isthmus_status isthmus_memory_resize_device(isthmus_device device, void** pointer, uint64_t bytes);

// Releases a block of `device`; the caller has waited for the work that uses it. NULL is allowed. A second
// free, another device and a pointer that is no start of a block are errors that say which.
ISTHMUS_API isthmus_status isthmus_memory_free_device(isthmus_device device, void* pointer);

// Gives what the pools of `device` hold unused back to the driver.
ISTHMUS_API isthmus_status isthmus_memory_trim(isthmus_device device);

typedef struct isthmus_memory_info {
  isthmus_device device;
  void* begin;        // start of the block
  uint64_t bytes;     // as it was asked for
  char provider[16];  // "umf", "direct", "sycl"
  int32_t pooled;     // 1: a part of what a pool holds
} isthmus_memory_info;

// The live plain block that holds `pointer`; INVALID_ARGUMENT when there is none.
ISTHMUS_API isthmus_status isthmus_memory_query(const void* pointer, isthmus_memory_info* info);

// JSON about `device`: its providers in order, each with its state or the reason why it is missing, the
// pool, live blocks. It opens the providers. `capacity` and `needed` as in isthmus_communicator_info.
ISTHMUS_API isthmus_status isthmus_memory_explain(isthmus_device device, char* json, size_t capacity,
                                                  size_t* required_bytes);

// Blocks of this process that live: plain ones and those of symmetric heaps that are their callers' to
// free. A program that freed everything sees 0.
ISTHMUS_API uint64_t isthmus_memory_live_blocks(void);

// The allocator of a front end, "sycl" for now, which the core cannot call by itself. Both functions may
// come from any thread, return 0 or a native code, and do not throw.
typedef struct isthmus_memory_provider {
  size_t struct_bytes;
  const char* name;  // "sycl"
  void* context;     // lives as long as the process
  int (*allocate)(void* context, uint64_t bytes, void** pointer);
  int (*free)(void* context, void* pointer);
} isthmus_memory_provider;

// Adds a provider to `device` for the rest of the process. The first of a name stays; later ones change
// nothing. `provider` is read during the call only.
ISTHMUS_API isthmus_status isthmus_memory_register(isthmus_device device,
                                                   const isthmus_memory_provider* provider);

// ---- copies between devices, and between a device and the host -----------------------------------------

// How bytes travel from device to device. `direct`: in one step, where the devices reach each other's memory.
// `staged`: in chunks through pinned host memory, both halves of the way at the same time.
typedef enum isthmus_copy_path {
  ISTHMUS_COPY_AUTO = 0,  // direct where the devices can, else staged
  ISTHMUS_COPY_DIRECT = 1,
  ISTHMUS_COPY_STAGED = 2
} isthmus_copy_path;

// Zero-initialise, set `struct_bytes = sizeof`, then what you need.
typedef struct isthmus_copy_options {
  size_t struct_bytes;
  isthmus_copy_path path;
  // 1: `stream` is one of source_device, which then pushes. 0: one of destination_device, which pulls.
  int32_t push;
  // Native events of the platform (CUevent, hipEvent_t) that the copy waits for, and one that it records when
  // it is through (NULL: none).
  void* const* wait_events;
  size_t wait_count;
  void* done_event;
} isthmus_copy_options;

// to[0 .. bytes) on destination_device = from[0 .. bytes) on source_device, after earlier work of `stream`; later work of
// `stream` sees it, and the host does not wait. Devices are of one platform, or one of them is the host
// ({ISTHMUS_PLATFORM_HOST, 0}; pageable memory makes the driver wait); `stream` is then the other one's, NULL
// its default stream. Between two places of the host the copy is done on return and `stream` is NULL.
// `options` may be NULL. Any alignment; bytes == 0 only orders. Ranges that overlap are refused, unless they
// are the same one, which is left as it is. INVALID_ARGUMENT, and UNSUPPORTED where the asked path or the pair
// of platforms has none; nothing has been started then. A staged copy cannot be captured into a graph.
ISTHMUS_API isthmus_status isthmus_memory_copy(void* destination, isthmus_device destination_device, const void* source,
                                               isthmus_device source_device, uint64_t bytes,
                                               const isthmus_copy_options* options, isthmus_stream stream);

// The path that a copy between these devices takes by itself: DIRECT or STAGED.
ISTHMUS_API isthmus_status isthmus_memory_copy_path(isthmus_device destination_device, isthmus_device source_device,
                                                    isthmus_copy_path* path);

#ifdef __cplusplus
}
#endif
#endif
