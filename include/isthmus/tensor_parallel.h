// Allreduce (sum) of one tensor over the devices of one process, for inference engines that use tensor
// parallelism: init, allreduce, free. Plain C; one host thread drives all devices.
//
// Ordering:
//   Device platforms: allreduce is ordered by the stream of each device and never blocks the host.
//   Host platform: the sum is complete when the call returns.
//
// Results:
//   All devices get bit-identical sums. Each contribution, including the local one, is rounded to the wire
//   format. The contributions are added in float32 in rank order, and the result is rounded once. isthmus_wire
//   states the error bound.
//
// Thread safety:
//   Calls on one handle must not overlap.
#ifndef ISTHMUS_TENSOR_PARALLEL_H
#define ISTHMUS_TENSOR_PARALLEL_H

#include <isthmus/isthmus.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct isthmus_tensor_parallel_impl* isthmus_tensor_parallel;

// The data type on the wire for float32 tensors. Tensors of other types are sent in their own type. BFLOAT16
// halves the bytes. Each contribution and the sum are rounded to nearest even. With u = 2^-8, an element
// differs from the exact sum by at most
//     (2 u + u^2 + n 2^-23) * (|x_0| + ... + |x_(n-1)|)
// if nothing overflows or underflows.
typedef enum isthmus_wire {
  ISTHMUS_WIRE_AUTO =
      0,  // BFLOAT16 for tensors above the configured size, otherwise EXACT; EXACT if `deterministic`
  ISTHMUS_WIRE_EXACT = 1,
  ISTHMUS_WIRE_BFLOAT16 = 2
} isthmus_wire;

// The algorithms of an engine that uses peer memory; docs/internals/p2p.md compares them. If an engine does not
// have the requested algorithm, it uses another one.
typedef enum isthmus_tensor_parallel_algorithm {
  ISTHMUS_ONE_SHOT = 0,
  ISTHMUS_TWO_SHOT = 1,
  ISTHMUS_TWO_SHOT_ZERO_COPY = 2  // writes results directly to the tensors of the other devices
} isthmus_tensor_parallel_algorithm;

// An engine computes the sums on one platform. The library contains the engine for the host, and its plug-in
// `p2p` contains those for CUDA and HIP. sycl/tensor_parallel.hpp provides an engine for SYCL queues, which is
// compiled with the user's program.
#define ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI 1u
#define ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL "isthmus_tensor_parallel_engine_v1"
typedef struct isthmus_tensor_parallel_engine {
  size_t struct_bytes;
  uint32_t abi_version;
  uint32_t platforms;  // bit mask of 1u << isthmus_platform
  const char* name;
  // Opens the engine for these devices. If they cannot work together, writes the reason to `reason`, returns
  // NULL and holds no resources.
  void* (*open)(int n, const isthmus_device* devices, const isthmus_stream* streams, double timeout_s,
                char* reason, size_t reason_bytes);
  // See isthmus_tensor_parallel_allreduce(). `requested_algorithm` and `bfloat16_wire` are hints from the rules. If
  // bfloat16_wire is false, the engine must send tensors in their own type.
  bool (*allreduce)(void* state, void* const* pointers, uint64_t count, isthmus_datatype datatype,
                    uint64_t active, isthmus_tensor_parallel_algorithm requested_algorithm, bool bfloat16_wire);
  // Waits up to the timeout for enqueued work, then releases all resources.
  void (*close)(void* state);
} isthmus_tensor_parallel_engine;

// Options of create. Zero-initialize the struct and set `struct_bytes = sizeof`, then set the members
// that you need.
typedef struct isthmus_tensor_parallel_options {
  size_t struct_bytes;
  const char* config_path;  // see isthmus_communicator_options
  double timeout_s;         // limit of a device's wait for the others; 0: configured value or 300 s
  isthmus_wire wire;
  const isthmus_tensor_parallel_engine* engine;  // NULL: the library's engine for the platform
} isthmus_tensor_parallel_options;

// Prepares 1 to 16 devices of one platform. streams[i] belongs to devices[i]; a NULL array selects
// the default streams.
// Blocking: may synchronize the devices.
// Errors: *handle is NULL on failure, and no resources are held. ISTHMUS_ERROR_UNSUPPORTED if these devices
// cannot work together (several platforms, no peer access, out of memory). isthmus_last_error() gives the reason.
// Lifetime: `devices`, `streams` and `options` (NULL: defaults) are only read during the call. The streams must
// outlive the handle.
ISTHMUS_API isthmus_status isthmus_tensor_parallel_create(int n, const isthmus_device* devices,
                                                          const isthmus_stream* streams,
                                                          const isthmus_tensor_parallel_options* options,
                                                          isthmus_tensor_parallel* handle);

#define ISTHMUS_ALL_ACTIVE UINT64_MAX

// Sums the tensors of the active devices: pointers[i][0..count) of every device becomes the sum over all
// devices i whose bit i is set in `active`. Inactive devices contribute zeros, whatever their memory contains
// (even NaN), and also get the sum. Pointers only need to be aligned to an element. Datatypes: float32, float16
// and bfloat16; all datatypes on the host.
// Errors: on failure, no tensor was or will be modified. ISTHMUS_ERROR_BACKEND if the engine fails.
// Capture: can be captured into a CUDA graph if all streams are captured together. A launch of the graph must
// not overlap another call on this handle.
ISTHMUS_API isthmus_status isthmus_tensor_parallel_allreduce(isthmus_tensor_parallel handle,
                                                             void* const* pointers, uint64_t count,
                                                             isthmus_datatype datatype, uint64_t active);

// Waits up to the timeout for enqueued work, then releases the handle. NULL is allowed.
ISTHMUS_API isthmus_status isthmus_tensor_parallel_destroy(isthmus_tensor_parallel handle);

#ifdef __cplusplus
}
#endif
#endif
