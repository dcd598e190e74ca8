// Enumerations, handles and plain structs of the C ABI. Included by isthmus.h, backend.h and the front ends;
// depends only on the C standard library.
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

// Enumerations generated from the collective table (collectives.def). Values are stable because rows
// are only appended.
typedef enum isthmus_collective {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
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

// The result of a function that can fail. isthmus_last_error() returns the details.
typedef enum isthmus_status {
  ISTHMUS_SUCCESS = 0,
  ISTHMUS_ERROR_INVALID_ARGUMENT = 1,  // invalid argument; nothing was written
  ISTHMUS_ERROR_INVALID_USAGE = 2,     // not allowed in this state: destroyed handle, unbalanced group, ...
  ISTHMUS_ERROR_UNSUPPORTED = 3,       // no backend of this communicator supports it
  ISTHMUS_ERROR_CONFIG = 4,            // invalid configuration file or environment variable
  ISTHMUS_ERROR_MISMATCH = 5,          // ranks disagree on rules, sizes or versions
  ISTHMUS_ERROR_OUT_OF_MEMORY = 6,
  ISTHMUS_ERROR_SYSTEM = 7,   // an operating system call failed; native_code is errno
  ISTHMUS_ERROR_BACKEND = 8,  // a native library failed; native_code is its own code
  ISTHMUS_ERROR_REMOTE = 9,   // another rank failed or exited
  ISTHMUS_ERROR_TIMEOUT = 10,
  ISTHMUS_ERROR_ABORTED = 11,  // an earlier failure or an explicit abort aborted the communicator
  ISTHMUS_ERROR_INTERNAL = 12
} isthmus_status;

// A communicator is one rank's membership in a group of ranks. A process may hold many.
typedef struct isthmus_communicator_impl* isthmus_communicator;

// A native stream of the platform (collectives.def lists the types); NULL on the host platform.
typedef void* isthmus_stream;

// The second part of isthmus_allreduce_rmsnorm(): the sum is rounded to the datatype and added to `residual`, and each
// row of the result is normalized. The receive buffer gets the result of the addition.
typedef struct isthmus_rmsnorm {
  uint64_t hidden;          // elements of a row; the count of the operation is a multiple of it
  const void* residual;     // as many elements as the operation
  const void* weight;       // `hidden` elements
  void* normalized;         // receives the normalized rows
  isthmus_datatype output;  // of `normalized`: the datatype of the operation, or float8_e4m3
  const float* scale;       // float8_e4m3: the scale of all rows; NULL: each row has its own
  float* scales;            // float8_e4m3 without `scale`: receives the scale of each row
  float eps;
  int32_t round_before_weight;  // 1: rounded to the datatype also before the product with the weight
} isthmus_rmsnorm;

// The contribution of a rank to an allreduce, as a matrix product: alpha * A * B + bias, rounded to the datatype. The
// operation is a sum of float16 or bfloat16 with count = rows * columns, and its send_buf is its recv_buf.
typedef struct isthmus_product {
  uint64_t rows, columns;  // of the result; at most ISTHMUS_PRODUCT_MAX_ROWS rows
  uint64_t inner;          // columns of A and rows of B; may differ between ranks
  const void* a;           // row-major, `lda` elements between rows
  const void* b;           // column-major, `ldb` elements between columns
  uint64_t lda, ldb;
  const void* bias;  // `columns` elements, added to each row of this rank's product; may be NULL
  float alpha;
} isthmus_product;
enum { ISTHMUS_PRODUCT_MAX_ROWS = 16 };

// The descriptor of one operation. The runtime validates it against the collective table before a backend
// receives it. `count` and the arrays are in elements of `datatype`. Members that the collective does not
// use are 0.
typedef struct isthmus_operation {
  isthmus_collective collective;
  isthmus_datatype datatype;
  isthmus_reduction_op op;
  int32_t root;  // root rank, or the peer rank of send and recv
  uint64_t count;
  const void* send_buf;
  void* recv_buf;
  const uint64_t* send_counts;  // for COUNTS extents: `size` entries each, only read during the call
  const uint64_t* send_displs;
  const uint64_t* recv_counts;
  const uint64_t* recv_displs;
  isthmus_stream stream;
  const isthmus_rmsnorm* rmsnorm;  // set by isthmus_allreduce_rmsnorm() on devices, otherwise NULL
  const isthmus_product* product;  // an allreduce of products, only outside of groups; otherwise NULL
} isthmus_operation;

// The device of a rank. `ordinal` is the platform's own number of the device, for example the
// CUDA device index.
typedef struct isthmus_device {
  isthmus_platform platform;
  int32_t ordinal;
} isthmus_device;

// The id that ranks use to connect: the address and port of a store, and a 256-bit secret. Treat it
// like a password.
typedef struct isthmus_unique_id {
  unsigned char bytes[128];
} isthmus_unique_id;

// The details of a failure. Strings are NUL-terminated and truncated to their arrays.
typedef struct isthmus_error_info {
  isthmus_status status;
  int32_t collective;   // an isthmus_collective, or -1 if no collective was involved
  int32_t rank;         // the rank that reports the failure, or -1
  int64_t native_code;  // code of the native library, or errno; 0 if there is none
  char backend[32];     // "" if no backend was involved
  char location[128];   // FILE:LINE in the source code of Isthmus
  char message[1024];   // argument, value and rule, or the operation that failed
  char hint[512];       // how to fix it; may be ""
} isthmus_error_info;

#ifdef __cplusplus
}
#endif
#endif
