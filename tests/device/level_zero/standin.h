/* Functions with which a test controls the stand-in driver that the Level Zero loader loads (ZE_ENABLE_ALT_DRIVERS). */
#ifndef ISTHMUS_LEVEL_ZERO_STANDIN_H
#define ISTHMUS_LEVEL_ZERO_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* There are two GPUs, or as many as STANDIN_GPUS says, after a device of another type. Each has standin_memory_bytes of memory. A block is limited to
 * standin_max_block_bytes unless relaxed limits are requested. */
enum { standin_memory_bytes = 1 << 30, standin_max_block_bytes = 128 << 20 };

/* Number of calls of a function ("zeMemFree") that reached the driver. */
typedef uint64_t standin_calls_function(const char* name);
/* Sets whether the GPUs can access each other. */
typedef void standin_set_peers_function(int reach);
/* 1: appended commands are not executed; 0: they are. */
typedef void standin_hold_function(int hold);
/* Number of live objects: device and host blocks, mappings of other processes' blocks, command lists, event pools. */
typedef int standin_live_function(void);
/* Number of calls of all functions that reached the driver. */
typedef uint64_t standin_all_calls_function(void);
/* Defines what kernels called `name` do. Any module has all kernels. `items` is the number of work-items. */
typedef void standin_kernel_body(void* const* arguments, uint64_t items);
typedef void standin_define_kernel_function(const char* name, const size_t* argument_bytes, size_t arguments,
                                            standin_kernel_body* run);

#ifdef __cplusplus
}
#endif
#endif
