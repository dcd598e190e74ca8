// What the stand-in between machines has been handed by this process.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wire_statistics {
  uint64_t calls;
  uint64_t summed_bytes;  // of this rank's contributions to reductions
  uint64_t moved_bytes;   // that this rank has for others, each of them counted
  int ranks;              // of the latest call's part
} wire_statistics;

// And begins anew.
wire_statistics wire_take_statistics(void);

#ifdef __cplusplus
}
#endif
