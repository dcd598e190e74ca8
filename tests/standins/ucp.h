/* Counters of the UCX stand-in. */
#ifndef ISTHMUS_STANDIN_UCP_H
#define ISTHMUS_STANDIN_UCP_H

#include <stddef.h>

#include "standin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of device memory that this process passed to UCX, and how often it configured UCX's caches. */
typedef struct standin_ucp_counters {
  size_t sent_bytes, received_bytes, cache_settings;
} standin_ucp_counters;

/* Returns the counters and resets them. */
STANDIN_API standin_ucp_counters standin_ucp_take_counters(void);

#ifdef __cplusplus
}
#endif
#endif
