/* How a test steers the stand-in driver that the Level Zero loader finds (ZE_ENABLE_ALT_DRIVERS). */
#ifndef ISTHMUS_LEVEL_ZERO_STANDIN_H
#define ISTHMUS_LEVEL_ZERO_STANDIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Two GPUs (and a device of another kind before them) with this much memory each, of which one block takes at
 * most the second figure unless relaxed limits are asked for. */
enum { standin_memory_bytes = 64 << 20, standin_max_block_bytes = 4 << 20 };

/* Calls of one function that got through to the driver, by its name ("zeMemFree"). */
typedef uint64_t standin_calls_function(const char* name);
/* Whether the GPUs reach each other. */
typedef void standin_set_peers_function(int reach);
/* 1: appended commands stay where they are until 0. */
typedef void standin_hold_function(int hold);
/* Live device and host blocks, mappings of other processes' blocks, command lists, event pools. */
typedef int standin_live_function(void);

#ifdef __cplusplus
}
#endif
#endif
