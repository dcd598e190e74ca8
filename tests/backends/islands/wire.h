// What the stand-in between machines has been handed by this process.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wire_tally {
  uint64_t calls;
  uint64_t summed_bytes;  // of this rank's contributions to reductions
  uint64_t moved_bytes;   // that this rank has for others, each of them counted
  int ranks;              // of the latest call's part
} wire_tally;

// And begins anew.
wire_tally wire_take_tally(void);

#ifdef __cplusplus
}
#endif
