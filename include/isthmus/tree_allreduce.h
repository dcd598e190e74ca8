// Allreduce (sum) whose bits do not depend on the number of ranks: see docs/guide/determinism.md.
//
// Results:
//   The contributions of all ranks are the leaves of one binary tree, in rank order. The first level adds leaves 0 and 1,
//   2 and 3, and so on. The next levels add these sums in the same way. A node without a neighbor moves up unchanged.
//   Sums are float32 (float64 for float64), and the result is rounded once to the datatype. 1, 2, 4 and 8 ranks that
//   divide the same 8 leaves therefore get the same bits.
#ifndef ISTHMUS_TREE_ALLREDUCE_H
#define ISTHMUS_TREE_ALLREDUCE_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// Adds the leaves of all ranks: recv_buf[0..count) on every rank becomes the sum of leaf_count * size leaves.
// `leaves` contains this rank's leaf_count leaves of `count` elements, one after the other. It must not overlap recv_buf.
// `leaf_count` (at least 1), `count` and `datatype` are equal on all ranks. `datatype` is floating-point, because sums of
// integers do not depend on the order. Uses allgather, or alltoall and allgather, of the communicator.
// Blocking: returns when this rank's part is complete. Ranks of one process call it from different threads.
// Errors: ISTHMUS_ERROR_UNSUPPORTED on device platforms. ISTHMUS_ERROR_INVALID_USAGE inside a group. ISTHMUS_ERROR_MISMATCH
// on all ranks if `leaf_count`, `count` or `datatype` differs between them.
ISTHMUS_API isthmus_status isthmus_tree_allreduce(const void* leaves, uint64_t leaf_count, void* recv_buf,
                                                  uint64_t count, isthmus_datatype datatype,
                                                  isthmus_communicator communicator);

#ifdef __cplusplus
}
#endif
#endif
