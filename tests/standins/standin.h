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

// ---- libstandin_xccl.so: nccl* ------------------------------------------------------------------------

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

#ifdef __cplusplus
}
#endif
#endif
