// Sum of one tensor over the devices of one process, for inference engines that split a model by tensor:
// init, allreduce, free. Plain C; one host thread drives all devices.
//
// Ordering. On a device platform allreduce only enqueues: it starts on each device after the earlier work
// of that device's stream, and later work of each stream sees the sum. The host never waits. On the host
// platform the sum is complete when the call returns.
// Results. All devices hold bit-identical sums: contributions, each rounded to the wire's type, the own one
// too, are added in float32 in rank order, and the result is rounded once. See isthmus_wire for the bound.
// Threads. Calls on one handle must not overlap.
#ifndef ISTHMUS_TENSOR_PARALLEL_H
#define ISTHMUS_TENSOR_PARALLEL_H

#include <isthmus/isthmus.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct isthmus_tensor_parallel_impl* isthmus_tensor_parallel;

// What travels between the devices for float32 tensors; other types travel as they are.
// BFLOAT16 halves the bytes. Every contribution and the sum are rounded to nearest even, so with u = 2^-8
// an element differs from the exact sum by at most
//     (2 u + u^2 + n 2^-23) * (|x_0| + ... + |x_(n-1)|)
// where nothing overflows or underflows.
typedef enum isthmus_wire {
  ISTHMUS_WIRE_AUTO = 0,  // BFLOAT16 for tensors of the size at which it pays, as configured; else exact
  ISTHMUS_WIRE_EXACT = 1,
  ISTHMUS_WIRE_BFLOAT16 = 2
} isthmus_wire;

// Algorithms of a peer-memory engine; what each is good for is in docs/p2p.md.
// An engine that lacks one takes another.
typedef enum isthmus_shots {
  ISTHMUS_ONE_SHOT = 0,
  ISTHMUS_TWO_SHOT = 1,
  ISTHMUS_TWO_SHOT_ZERO_COPY = 2  // results go straight into the other devices' tensors
} isthmus_shots;

// What moves the data on a platform. The library brings one for the host, its p2p plug-in those for CUDA
// and HIP; sycl/tensor_parallel.hpp is one for SYCL queues, which only the user's own program can compile.
#define ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI 1u
#define ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL "isthmus_tensor_parallel_engine_v1"
typedef struct isthmus_tensor_parallel_engine {
  size_t struct_bytes;
  uint32_t abi_version;
  uint32_t platforms;  // bit mask of 1u << isthmus_platform
  const char* name;
  // NULL, and why in `reason`, where these devices can't work together; everything is released then.
  void* (*open)(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s,
                char* reason, size_t reason_bytes);
  // As isthmus_tensor_parallel_allreduce. `shots` and `bfloat16_wire` are advice from the rules, except
  // that an exact wire is never replaced by another.
  bool (*allreduce)(void* state, void* const* pointers, uint64_t count, isthmus_datatype datatype,
                    uint64_t active, isthmus_shots shots, bool bfloat16_wire);
  // Waits for what was enqueued, bounded by the timeout, and releases everything.
  void (*close)(void* state);
} isthmus_tensor_parallel_engine;

// Zero-initialise, set `struct_bytes = sizeof`, then what you need.
typedef struct isthmus_tensor_parallel_options {
  size_t struct_bytes;
  const char* config_path;  // as in isthmus_communicator_options
  double timeout_s;         // bound on a device's wait for the others; 0: config or 300 s
  isthmus_wire wire;
  const isthmus_tensor_parallel_engine* engine;  // NULL: the library's own for the platform
} isthmus_tensor_parallel_options;

// Prepares 1 to 16 devices of one platform; streams[i] belongs to devices[i] (NULL array: default streams).
// `devices`, `streams` and `options` (NULL: defaults) are read during the call only; the streams must
// outlive the handle. NULL where these devices can't work together (several platforms, no peer access, no
// memory): isthmus_last_error says why, and nothing is held. May synchronise the devices.
ISTHMUS_API isthmus_tensor_parallel
isthmus_tensor_parallel_init(int n, const isthmus_device* devices, const isthmus_stream* streams,
                             const isthmus_tensor_parallel_options* options);

#define ISTHMUS_ALL_ACTIVE UINT64_MAX

// pointers[i][0..count) of every device becomes the sum over the devices i whose bit i is set in `active`.
// The others count as zeros whatever their memory holds (NaN too), and get the sum as well. Pointers need
// the alignment of the element only. float32, float16 and bfloat16 (on the host: every datatype).
// true: enqueued. false: not done, and no tensor was or will be touched: isthmus_last_error says why.
// Can be captured into a CUDA graph where all streams are captured together; a launch of the graph must
// then not overlap another call on this handle.
ISTHMUS_API bool isthmus_tensor_parallel_allreduce(isthmus_tensor_parallel handle, void* const* pointers,
                                                   uint64_t count, isthmus_datatype datatype, uint64_t active);

// Waits for work in flight, bounded by the timeout, and releases everything. NULL is allowed.
ISTHMUS_API void isthmus_tensor_parallel_free(isthmus_tensor_parallel handle);

#ifdef __cplusplus
}
#endif
#endif
