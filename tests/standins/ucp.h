/* What the stand-in of UCX tells tests. */
#ifndef ISTHMUS_STANDIN_UCP_H
#define ISTHMUS_STANDIN_UCP_H

#include <stddef.h>

#include "standin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of device memory that this process handed to UCX, and how often it set what UCX's caches do. */
typedef struct standin_ucp_counters {
  size_t sent_bytes, received_bytes, cache_settings;
} standin_ucp_counters;

/* And begins anew. */
STANDIN_API standin_ucp_counters standin_ucp_take_counters(void);

#ifdef __cplusplus
}
#endif
#endif
