// Stand-ins for vendor libraries on machines without their hardware: they keep the C interfaces, move
// real data between threads and processes, run streams in threads of their own, and record what was
// called. Tests steer them through the functions below.
#ifndef ISTHMUS_STANDIN_H
#define ISTHMUS_STANDIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STANDIN_API __attribute__((visibility("default")))

// ---- libstandin_device.so: cuda* and hip* -----------------------------------------------------------

// Runs `function(argument)` on the stream (NULL: the current device's default stream), in order.
STANDIN_API void standin_stream_submit(void* stream, void (*function)(void*), void* argument);
// Devices that exist; every device is host memory.
STANDIN_API void standin_set_device_count(int count);
// Puts device `a` on the same bus id as device `b`.
STANDIN_API void standin_alias_device(int a, int b);

// Their drivers, cu* and hip*, in the same library (ISTHMUS_CUDA_DRIVER_LIBRARY, ISTHMUS_HIP_RUNTIME_LIBRARY).
// Device memory is shared memory: what a process exports, another one really maps. An access that would
// fault on a device (no peer access, out of a block's range) fails the call with "invalid argument".

// Whether `device` reaches the memory of `peer` (yes, unless a test says no).
STANDIN_API void standin_connect(int device, int peer, int connected);
// Bytes that each device has (default 64 GiB, taken as they are touched).
STANDIN_API void standin_set_memory(size_t bytes);
// Whether the CUDA driver shares blocks as file descriptors (default) or only as interprocess handles.
STANDIN_API void standin_set_descriptors(int supported);
// The compute capability that the CUDA driver reports (default 9.0).
STANDIN_API void standin_set_capability(int major, int minor);
// Makes a stream look captured: it still runs what it gets, but refuses what capture refuses.
STANDIN_API void standin_set_capturing(void* stream, int capturing);
// The `nth` call (1 is the next) of a driver function of this process returns `code`.
STANDIN_API void standin_fail_driver(const char* function, int nth, int code);
// Calls of a driver function so far, in this process.
STANDIN_API int standin_driver_calls(const char* function);
// Blocks, physical allocations and address ranges of this process that live.
STANDIN_API size_t standin_live_memory(void);
// Streams that this process created and did not destroy; and events.
STANDIN_API int standin_live_streams(void);
STANDIN_API int standin_live_events(void);
// Contexts that this thread pushed and did not pop.
STANDIN_API int standin_context_depth(void);

// ---- libstandin_compilers.so: nvrtc* and hiprtc* ---------------------------------------------------------

// Their code runs on the stand-in devices only, and only that of the reduction kernel.

// ---- libstandin_nccl.so: nccl* ------------------------------------------------------------------------

// Version that ncclGetVersion reports (default 22809).
STANDIN_API void standin_set_version(int version);
// The `nth` call (1 is the next) of `function`, by any rank of this process, returns `code`.
STANDIN_API void standin_fail(const char* function, int nth, int code);
// The next collective that runs in this process stops half-way: it leaves its result unwritten, and the
// communicator's asynchronous error becomes `code`.
STANDIN_API void standin_fail_half_way(int code);
// Makes the communicators of this process that start from now on never finish their init.
STANDIN_API void standin_hang_init(int hang);
// Names of the native calls of this process since the last clear, one a line. Returns the length needed.
STANDIN_API size_t standin_calls(char* text, size_t capacity);
STANDIN_API void standin_clear_calls(void);
// Communicators that exist in this process.
STANDIN_API int standin_live_communicators(void);
// Buffers and windows that are registered in this process.
STANDIN_API int standin_registered(void);

#ifdef __cplusplus
}
#endif
#endif
