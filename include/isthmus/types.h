// Enumerations, handles and plain structures of the C ABI. Included by isthmus.h, backend.h and the
// front ends; depends on nothing but the C standard library.
#ifndef ISTHMUS_TYPES_H
#define ISTHMUS_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_VERSION_MAJOR 0
#define ISTHMUS_VERSION_MINOR 1
#define ISTHMUS_VERSION_PATCH 0

// The enumerations that THE TABLE generates. Values are stable: rows are only ever appended.
typedef enum isthmus_collective {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, in_place) \
  ISTHMUS_##NAME,
#include <isthmus/collectives.def>
  ISTHMUS_COLLECTIVE_COUNT
} isthmus_collective;

typedef enum isthmus_datatype {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) ISTHMUS_##NAME,
#include <isthmus/collectives.def>
  ISTHMUS_DATATYPE_COUNT
} isthmus_datatype;

typedef enum isthmus_reduction_op {
#define ISTHMUS_REDUCTION_OP(name, NAME) ISTHMUS_##NAME,
#include <isthmus/collectives.def>
  ISTHMUS_REDUCTION_OP_COUNT
} isthmus_reduction_op;

typedef enum isthmus_platform {
#define ISTHMUS_PLATFORM(name, NAME) ISTHMUS_PLATFORM_##NAME,
#include <isthmus/collectives.def>
  ISTHMUS_PLATFORM_COUNT
} isthmus_platform;

// Every function that can fail returns one of these; isthmus_last_error has the rest of the story.
typedef enum isthmus_status {
  ISTHMUS_SUCCESS = 0,
  ISTHMUS_ERROR_INVALID_ARGUMENT = 1,  // an argument breaks its rule; nothing was written
  ISTHMUS_ERROR_INVALID_USAGE = 2,     // the call is wrong here: destroyed handle, unbalanced group, ...
  ISTHMUS_ERROR_UNSUPPORTED = 3,       // no backend of this communicator can do it
  ISTHMUS_ERROR_CONFIG = 4,            // configuration file or environment
  ISTHMUS_ERROR_MISMATCH = 5,          // ranks disagree: rules, sizes, versions
  ISTHMUS_ERROR_OUT_OF_MEMORY = 6,
  ISTHMUS_ERROR_SYSTEM = 7,   // an operating system call failed; native_code is errno
  ISTHMUS_ERROR_BACKEND = 8,  // a native library failed; native_code is its own code
  ISTHMUS_ERROR_REMOTE = 9,   // another rank failed or vanished
  ISTHMUS_ERROR_TIMEOUT = 10,
  ISTHMUS_ERROR_ABORTED = 11,  // the communicator was poisoned by an earlier failure or an abort
  ISTHMUS_ERROR_INTERNAL = 12
} isthmus_status;

// A communicator is one rank's membership in a group of ranks. A process may hold many.
typedef struct isthmus_communicator_impl* isthmus_communicator;

// The platform's native stream (collectives.def says which type); NULL on the host platform.
typedef void* isthmus_stream;

// What one collective call is. The runtime validates it against THE TABLE before any backend sees it.
// `count` and the arrays count elements of `datatype`; fields that the collective does not use are 0.
typedef struct isthmus_operation {
  isthmus_collective collective;
  isthmus_datatype datatype;
  isthmus_reduction_op op;
  int32_t root;  // root rank, or the peer of send/recv
  uint64_t count;
  const void* send_buf;
  void* recv_buf;
  const uint64_t* send_counts;  // COUNTS extents: `size` entries each, read during the call only
  const uint64_t* send_displs;
  const uint64_t* recv_counts;
  const uint64_t* recv_displs;
  isthmus_stream stream;
} isthmus_operation;

// A device that a rank is bound to. `ordinal` is the platform's own numbering (CUDA device index, ...).
typedef struct isthmus_device {
  isthmus_platform platform;
  int32_t ordinal;
} isthmus_device;

// How ranks find each other: address and port of a store, and a 256-bit secret. Treat it as a password.
typedef struct isthmus_unique_id {
  unsigned char bytes[128];
} isthmus_unique_id;

// Everything known about a failure. Strings are NUL-terminated and cut where they do not fit.
typedef struct isthmus_error_info {
  isthmus_status status;
  int32_t collective;   // an isthmus_collective, or -1 when no collective was involved
  int32_t rank;         // the rank that reports, or -1
  int64_t native_code;  // the native library's own code or errno; 0 when there is none
  char backend[32];     // "" when no backend was involved
  char location[128];   // file:line in the source of Isthmus
  char message[1024];   // argument, value and rule, or what failed
  char hint[512];       // what to do about it; may be ""
} isthmus_error_info;

#ifdef __cplusplus
}
#endif
#endif
