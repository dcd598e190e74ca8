// The data that this process passed to the stand-in for an inter-node backend.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wire_statistics {
  uint64_t calls;
  uint64_t summed_bytes;  // this rank's contributions to reductions
  uint64_t moved_bytes;   // blocks of this rank for other ranks, counted once per receiver
  int ranks;              // of the communicator of the latest call
} wire_statistics;

// Returns the statistics and resets them.
wire_statistics wire_take_statistics(void);

#ifdef __cplusplus
}
#endif
