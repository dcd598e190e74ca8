// Memory allocation and copies: blocks of the symmetric heap, which all ranks can reach, and plain blocks of
// one device, which use no host memory. docs/guide/memory.md explains the providers.
// Thread safety: all functions may be called from any thread.
#ifndef ISTHMUS_MEMORY_H
#define ISTHMUS_MEMORY_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- symmetric heap: blocks of a communicator ---------------------------------------------------------

// Allocates a block of the symmetric heap. Collective over the communicator, with equal `bytes` on all ranks.
// The block is mapped into every peer that can reach it (host platform: shared memory). Collectives do not need
// to stage buffers in the block. The pointer is aligned to at least 256 bytes (host: to a page); the contents
// are undefined. bytes == 0 returns NULL.
// Blocking: waits until all ranks have called.
// Thread safety: if one process has several ranks, call this from a separate thread for each rank.
// Errors: ISTHMUS_ERROR_INVALID_USAGE inside a group.
ISTHMUS_API isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                             void** pointer);

// Returns in *peer the address at which this process can access `rank`'s block, at the byte that corresponds to
// `pointer`. `pointer` is a byte of a live block of this rank. Intended for the program's own kernels and
// copies, which must synchronize themselves. *peer is NULL if the rank is not reachable because it is on
// another node or on a device without peer access. Not collective.
// Lifetime: valid until this rank frees the block.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT if there is no such rank, or if `pointer` lies in no block.
ISTHMUS_API isthmus_status isthmus_memory_peer(isthmus_communicator communicator, const void* pointer, int rank,
                                               void** peer);

// Frees this rank's block of the symmetric heap. Not collective: it does not wait for other ranks, and their
// blocks remain. The caller must ensure that no operation uses the block. NULL is allowed. Destroying the
// communicator frees the remaining blocks.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT if the pointer comes from another allocator or has already been freed.
ISTHMUS_API isthmus_status isthmus_memory_free_symmetric(isthmus_communicator communicator, void* pointer);

// ---- plain memory of one device, without a communicator -----------------------------------------------

// Each device tries its providers in this order. The provider that allocated a block also frees it:
//   "umf"     UMF's CUDA, Level Zero or operating system provider
//   "direct"  the driver's own allocator
//   "sycl"    sycl::malloc_device, if a SYCL program registered it
// The section [memory] of the configuration and the environment variables ISTHMUS_MEMORY_* can force or disable
// providers. Both are read once per process.

// Options of a new block. Zero-initialize the struct and set `struct_bytes = sizeof`, then set the members
// that you need.
typedef struct isthmus_memory_options {
  size_t struct_bytes;
  int32_t unpooled;  // 1: bypass the pool; free returns the block to the driver
  // 1: isthmus_memory_resize_device() resizes the block by mapping pages, without a copy and without allocating
  // the old and the new size at the same time. The block is never pooled. On cuda (virtual memory), only its
  // own device can access it, and it has no interprocess handle; use isthmus_memory_copy() to copy it to other
  // devices. Returns ISTHMUS_ERROR_UNSUPPORTED on hip and level_zero.
  int32_t growable;
  // level_zero: the ze_context_handle_t in which the program uses the block (for example, that of its SYCL
  // queue), because a block is only usable in its own context. The context must live as long as the process.
  // NULL: Isthmus uses its own context. Must be NULL on other platforms.
  void* native_context;
} isthmus_memory_options;

// Allocates `bytes` bytes on `device`, aligned to at least 256 bytes, with undefined contents. The host can
// access the block only on the host platform. `options` may be NULL. bytes == 0 returns NULL.
// Errors: ISTHMUS_ERROR_OUT_OF_MEMORY lists the error of each provider; all other blocks remain usable.
ISTHMUS_API isthmus_status isthmus_memory_allocate_device(isthmus_device device, uint64_t bytes,
                                                          const isthmus_memory_options* options,
                                                          void** pointer);

// Resizes the block at *pointer (NULL: allocates one) to `bytes` bytes and keeps the contents that fit. The
// block may move; it keeps its native context and stays growable. The caller must first wait for all work that
// uses the block.
// Errors: the block is unchanged on failure.
ISTHMUS_API isthmus_status isthmus_memory_resize_device(isthmus_device device, void** pointer, uint64_t bytes);

// Frees a block of `device`. The caller must first wait for all work that uses the block. NULL is allowed.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT if the block has already been freed or belongs to another device, or
// if the pointer is not the start of a block.
ISTHMUS_API isthmus_status isthmus_memory_free_device(isthmus_device device, void* pointer);

// Returns the unused memory in the pools of `device` to the driver.
ISTHMUS_API isthmus_status isthmus_memory_trim(isthmus_device device);

// Describes a plain block.
typedef struct isthmus_memory_info {
  isthmus_device device;
  void* begin;        // start of the block
  uint64_t bytes;     // the requested size
  char provider[16];  // "umf", "direct", "sycl"
  int32_t pooled;     // 1: suballocated from a pool
} isthmus_memory_info;

// Finds the live plain block that contains `pointer`. Returns ISTHMUS_ERROR_INVALID_ARGUMENT if there is none.
ISTHMUS_API isthmus_status isthmus_memory_query(const void* pointer, isthmus_memory_info* info);

// An allocator that a front end provides, because the core cannot call it directly. Currently only "sycl".
// Errors: both functions return 0 or a native error code. They must not throw.
// Thread safety: both functions may be called from any thread.
typedef struct isthmus_memory_provider {
  size_t struct_bytes;
  const char* name;  // "sycl"
  void* context;     // must live as long as the process
  int (*allocate)(void* context, uint64_t bytes, void** pointer);
  int (*free)(void* context, void* pointer);
} isthmus_memory_provider;

// Registers a provider for `device` until the process exits. Only the first provider with a given name is used;
// later calls have no effect.
// Lifetime: `provider` is only read during the call.
ISTHMUS_API isthmus_status isthmus_memory_register(isthmus_device device,
                                                   const isthmus_memory_provider* provider);

// ---- copies between devices, and between a device and the host -----------------------------------------

// The path of a copy between devices. DIRECT: in one step; requires that the devices can access each other's
// memory. STAGED: in chunks through pinned host memory; the two steps overlap.
typedef enum isthmus_copy_path {
  ISTHMUS_COPY_AUTO = 0,  // direct if the devices support it, otherwise staged
  ISTHMUS_COPY_DIRECT = 1,
  ISTHMUS_COPY_STAGED = 2
} isthmus_copy_path;

// Options of a copy. Zero-initialize the struct and set `struct_bytes = sizeof`, then set the members
// that you need.
typedef struct isthmus_copy_options {
  size_t struct_bytes;
  isthmus_copy_path path;
  // 1: push, `stream` belongs to source_device. 0: pull, `stream` belongs to destination_device.
  int32_t push;
  // Native events of the platform (CUevent, hipEvent_t): the copy waits for wait_events and records done_event
  // when it is complete (NULL: none).
  void* const* wait_events;
  size_t wait_count;
  void* done_event;
} isthmus_copy_options;

// Copies `bytes` bytes from `source` on source_device to `destination` on destination_device. `options`
// may be NULL.
// Ordering: starts after earlier work of `stream` and completes before later work, even if bytes == 0. The host
// does not wait, except for pageable host memory, for which the driver waits. A copy from host to host is
// complete on return.
// Platforms: both devices belong to one platform, or one of them is the host ({ISTHMUS_PLATFORM_HOST, 0}).
// `stream` then belongs to the other device; NULL is its default stream. `stream` must be NULL for a
// copy from host to host.
// Alignment: any. Overlapping ranges are rejected; identical ranges are left unchanged.
// Errors: ISTHMUS_ERROR_INVALID_ARGUMENT, or ISTHMUS_ERROR_UNSUPPORTED if the requested path or the pair of
// platforms is not supported. In both cases, nothing has been started.
// Capture: a staged copy cannot be captured into a graph.
ISTHMUS_API isthmus_status isthmus_memory_copy(void* destination, isthmus_device destination_device,
                                               const void* source, isthmus_device source_device, uint64_t bytes,
                                               const isthmus_copy_options* options, isthmus_stream stream);

#ifdef __cplusplus
}
#endif
#endif
