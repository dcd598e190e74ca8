// Stand-ins for vendor libraries on machines without their hardware. They implement the C interfaces, move real
// data between threads and processes, run streams in separate threads, and record calls. Tests control them
// with the functions below.
#ifndef ISTHMUS_STANDIN_H
#define ISTHMUS_STANDIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STANDIN_API __attribute__((visibility("default")))

// ---- libstandin_device.so: cuda* and hip* -----------------------------------------------------------

// Runs `function(argument)` on the stream, in order. NULL is the default stream of the current device.
STANDIN_API void standin_stream_submit(void* stream, void (*function)(void*), void* argument);
// Number of devices. All of them use host memory.
STANDIN_API void standin_set_device_count(int count);
// Gives device `a` the bus id of device `b`.
STANDIN_API void standin_alias_device(int a, int b);

// The drivers, cu* and hip*, are in the same library (ISTHMUS_CUDA_DRIVER_LIBRARY,
// ISTHMUS_HIP_RUNTIME_LIBRARY). Device memory is shared memory: another process really maps what this
// one exports. An access that would fault on a device (no peer access, outside of a block) fails the
// call with "invalid argument".

// Whether `device` can access the memory of `peer` (default: yes).
STANDIN_API void standin_connect(int device, int peer, int connected);
// Memory of each device in bytes (default 64 GiB, allocated on first use).
STANDIN_API void standin_set_memory(size_t bytes);
// Selects how the CUDA driver shares blocks: as file descriptors (default) or only as interprocess handles.
STANDIN_API void standin_set_descriptors(int supported);
// The compute capability that the CUDA driver reports (default 9.0).
STANDIN_API void standin_set_capability(int major, int minor);
// Makes a stream look captured. It still runs its work, but rejects calls that are not allowed during capture.
STANDIN_API void standin_set_capturing(void* stream, int capturing);
// Makes the `nth` call (1 is the next) of a driver function in this process return `code`.
STANDIN_API void standin_fail_driver(const char* function, int nth, int code);
// Number of calls of a driver function so far, in this process.
STANDIN_API int standin_driver_calls(const char* function);
// Number of live blocks, physical allocations and address ranges of this process.
STANDIN_API size_t standin_live_memory(void);
// Number of streams, and of events, that this process has created and not destroyed.
STANDIN_API int standin_live_streams(void);
STANDIN_API int standin_live_events(void);
// Number of contexts that this thread has pushed and not popped.
STANDIN_API int standin_context_depth(void);

// ---- libstandin_compilers.so: nvrtc* and hiprtc* ---------------------------------------------------------

// Their code runs only on the stand-in devices, and only the reduction kernel is supported.

// ---- libstandin_nccl.so: nccl* ------------------------------------------------------------------------

// The version that ncclGetVersion reports (default 22809).
STANDIN_API void standin_set_version(int version);
// Makes the `nth` call (1 is the next) of `function`, by any rank of this process, return `code`.
STANDIN_API void standin_fail(const char* function, int nth, int code);
// Makes the next collective of this process stop halfway: it does not write its result, and the communicator's
// asynchronous error becomes `code`.
STANDIN_API void standin_fail_half_way(int code);
// Makes the init of communicators in this process hang from now on.
STANDIN_API void standin_hang_init(int hang);
// While this is set, ncclCommAbort does not return.
STANDIN_API void standin_hang_abort(int hang);
// Names of the native calls of this process since the last clear, one per line. Returns the required capacity.
STANDIN_API size_t standin_calls(char* text, size_t capacity);
STANDIN_API void standin_clear_calls(void);
// Number of communicators in this process.
STANDIN_API int standin_live_communicators(void);
// Number of buffers and windows registered in this process.
STANDIN_API int standin_registered(void);

#ifdef __cplusplus
}
#endif
#endif
