// Matrix products fused with the collective that feeds or follows them: the operator streams chunks, so
// that communication hides behind compute. Plans are made once per shape and run many times.
//
// Ordering. Every rank creates the same plans and runs them in the same order. On a device platform a run
// only enqueues: it starts after the stream's earlier work, later work of the stream sees C and may reuse
// every buffer, and the host does not wait. On the host platform it returns when that holds.
// Results. A plan gives the same bits for the same inputs, whatever arrives first: chunks are computed in
// the plan's order. Products are accumulated in float32 and rounded once to C's type; on devices perhaps once
// more before a bias is added, where the library adds it in a second pass. Ranks that compute the same rows may
// differ in their last bits, because each starts with its own shard. Errors. Ranks that disagree about a plan
// all get ISTHMUS_ERROR_MISMATCH. A run that fails validation has written nothing; one that fails later poisons
// the communicator, and no rank waits past its timeout. Threads. Calls on one communicator and its plans must
// not overlap; several ranks of one process call plan_create (and, on the host platform, run) from a thread
// each. Not inside groups.
#ifndef ISTHMUS_FUSED_H
#define ISTHMUS_FUSED_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// Below, `size` is the number of ranks, A B C are row-major unless said otherwise.
//   ALLGATHER_GEMM       C[m x n] = alpha * allgather(A)[m x k] * B[k x n] + beta * C + bias
//                        A is this rank's m/size rows. B is replicated, or with ISTHMUS_FUSED_SHARDED_B
//                        this rank's columns, and then n may differ between ranks.
//   GEMM_REDUCE_SCATTER  C[m/size x n] = own rows of the sum over ranks of alpha * A[m x k] * B[k x n], + bias
//                        Each rank has its columns of A and rows of B; k may differ between ranks. Partial
//                        sums go round the ring in C's type, own rows last; beta must be 0.
typedef enum isthmus_fused_kind {
  ISTHMUS_FUSED_ALLGATHER_GEMM = 0,
  ISTHMUS_FUSED_GEMM_REDUCE_SCATTER = 1
} isthmus_fused_kind;

typedef enum isthmus_matrix_layout { ISTHMUS_ROW_MAJOR = 0, ISTHMUS_COLUMN_MAJOR = 1 } isthmus_matrix_layout;

typedef enum isthmus_fused_mode {
  ISTHMUS_FUSED_BY_MODEL = 0,    // pipelined, unless the cost model says that it loses; info has the reason
  ISTHMUS_FUSED_SEQUENTIAL = 1,  // the whole collective, then one product (reduce_scatter: the reverse)
  ISTHMUS_FUSED_PIPELINED = 2
} isthmus_fused_mode;

enum { ISTHMUS_FUSED_SHARDED_B = 1u << 0, ISTHMUS_FUSED_TRACE = 1u << 1 };

// Zero-initialise, set `struct_bytes = sizeof`, then what you need. The same on every rank, but for what
// the kind lets differ.
typedef struct isthmus_fused_description {
  size_t struct_bytes;
  isthmus_fused_kind kind;
  isthmus_fused_mode mode;
  uint64_t m, n, k;         // elements, as above; m is a multiple of size; each may be 0
  isthmus_datatype input;   // of A and B: float16, bfloat16 or float32
  isthmus_datatype output;  // of C and bias: float32 or the input's
  isthmus_matrix_layout b_layout;
  uint32_t flags;          // ISTHMUS_FUSED_...
  uint64_t lda, ldb, ldc;  // elements between rows (columns of a column-major B); 0: dense
  uint32_t chunks;         // pieces that each remote shard travels in; 0: by the cost model
} isthmus_fused_description;

typedef struct isthmus_fused_plan_impl* isthmus_fused_plan;

// Collective; blocks, and may measure products and copies for the cost model (docs/fused_model.md). The plan
// owns its workspace. Release it before the communicator.
ISTHMUS_API isthmus_status isthmus_fused_plan_create(isthmus_communicator communicator,
                                                     const isthmus_fused_description* description,
                                                     isthmus_fused_plan* plan);

// A run as a whole, or a part of it for benchmarks: the products on whatever the workspace holds, or the
// collective alone, on whatever it holds (which leaves C as it is for ALLGATHER_GEMM).
typedef enum isthmus_fused_view {
  ISTHMUS_FUSED_WHOLE = 0,
  ISTHMUS_FUSED_COMPUTE_ONLY = 1,
  ISTHMUS_FUSED_COMMUNICATION_ONLY = 2
} isthmus_fused_view;

// Buffers need the alignment of their elements and must not overlap C or gathered_a. A of ALLGATHER_GEMM in the
// symmetric heap (memory.h), at the same place of the same block on all ranks, is read by the peers where it
// lies; outside of it, then on all ranks, it is staged, which info notes. Ranks that differ get
// ISTHMUS_ERROR_MISMATCH on the host platform and wrong rows on devices.
typedef struct isthmus_fused_arguments {
  size_t struct_bytes;
  const void* a;
  const void* b;
  void* c;
  const void* bias;  // n elements, added to every row; may be NULL
  void* gathered_a;  // ALLGATHER_GEMM: gets the whole A[m x k], dense; may be NULL
  double alpha;
  double beta;  // 0: C is not read
  isthmus_fused_view view;
  isthmus_stream stream;
} isthmus_fused_arguments;

// Collective, with the same alpha, beta, view and presence of buffers on every rank.
ISTHMUS_API isthmus_status isthmus_fused_run(isthmus_fused_plan plan, const isthmus_fused_arguments* arguments);

// JSON, as isthmus_communicator_info: mode and its reason, chunks, the groups of rows in the order in which
// they are computed, predicted times, libraries, workspace bytes and notes (staged buffers).
ISTHMUS_API isthmus_status isthmus_fused_plan_info(isthmus_fused_plan plan, char* json, size_t capacity,
                                                   size_t* required_bytes);

// The latest run of a plan with ISTHMUS_FUSED_TRACE on this rank, in the Chrome trace format that Perfetto
// reads: one slice per chunk moved and per product, times in microseconds of the machine's monotonic clock.
// Waits for that run.
ISTHMUS_API isthmus_status isthmus_fused_plan_trace(isthmus_fused_plan plan, char* json, size_t capacity,
                                                    size_t* required_bytes);

// Waits for this rank's runs, at most the timeout, and releases everything; NULL is allowed.
ISTHMUS_API isthmus_status isthmus_fused_plan_destroy(isthmus_fused_plan plan);

#ifdef __cplusplus
}
#endif
#endif
