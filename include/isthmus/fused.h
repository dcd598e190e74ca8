// Matrix products fused with the collective that precedes or follows them. The operator transfers chunks while
// it computes, which hides the communication. Create a plan once per shape and run it many times.
//
// Ordering:
//   All ranks must create the same plans and run them in the same order.
//   Device platforms: a run is ordered by its stream and does not block the host. Later work of the stream
//   sees C and can reuse all buffers.
//   Host platform: a run returns when C is complete and all buffers can be reused.
//
// Results:
//   A plan gives bit-identical results for the same inputs, because chunks are computed in the plan's
//   order, not in the order of arrival. Products are accumulated in float32 and rounded once to the type of
//   C. On devices, they may be rounded once more before a bias is added, if the library adds the bias in a
//   second pass. Ranks that compute the same rows may differ in the last bits, because each rank starts
//   with its own shard.
//
// Errors:
//   If the ranks disagree about a plan, all get ISTHMUS_ERROR_MISMATCH. A run that fails
//   validation writes nothing. A run that fails later aborts the communicator. No rank waits
//   longer than the communicator's timeout.
//
// Thread safety:
//   Calls on one communicator and its plans must not overlap. If one process has several ranks, call
//   plan_create from a separate thread for each rank; on the host platform, also run. Calls inside
//   groups are rejected.
#ifndef ISTHMUS_FUSED_H
#define ISTHMUS_FUSED_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// The products. `size` is the number of ranks; A, B and C are row-major by default.
//   ALLGATHER_GEMM       C[m x n] = alpha * allgather(A)[m x k] * B[k x n] + beta * C + bias
//                        A is this rank's m/size rows. B is replicated. With ISTHMUS_FUSED_SHARDED_B, B is this
//                        rank's columns, and n may differ between ranks.
//   GEMM_REDUCE_SCATTER  C[m/size x n] = own rows of the sum over ranks of alpha * A[m x k] * B[k x n], + bias
//                        Each rank has its columns of A and rows of B; k may differ between ranks. Partial sums
//                        travel around a ring in the type of C, own rows last. beta must be 0.
//   GEMM_ALLREDUCE       C[m x n] = sum over ranks of alpha * A[m x k] * B[k x n], + bias
//                        As GEMM_REDUCE_SCATTER, but every rank gets all rows, and m can have any value. Each product
//                        is rounded to the type of C, that of rank 0 after adding the bias. The communicator's allreduce
//                        defines the order of the sum. Pipelined: one kernel computes the products and their sum.
typedef enum isthmus_fused_kind {
  ISTHMUS_FUSED_ALLGATHER_GEMM = 0,
  ISTHMUS_FUSED_GEMM_REDUCE_SCATTER = 1,
  ISTHMUS_FUSED_GEMM_ALLREDUCE = 2
} isthmus_fused_kind;

typedef enum isthmus_matrix_layout { ISTHMUS_ROW_MAJOR = 0, ISTHMUS_COLUMN_MAJOR = 1 } isthmus_matrix_layout;

typedef enum isthmus_fused_mode {
  ISTHMUS_FUSED_BY_MODEL = 0,    // pipelined, unless the cost model predicts a loss; info has the reason
  ISTHMUS_FUSED_SEQUENTIAL = 1,  // the collective, then one product (the other kinds: the reverse)
  ISTHMUS_FUSED_PIPELINED = 2    // for graphs: the number of chunks ignores the time of the host
} isthmus_fused_mode;

enum { ISTHMUS_FUSED_SHARDED_B = 1u << 0, ISTHMUS_FUSED_TRACE = 1u << 1 };

// The shape of a plan. Zero-initialize the struct and set `struct_bytes = sizeof`, then set the members that
// you need. The members must be equal on all ranks, except those that may differ for this kind.
typedef struct isthmus_fused_description {
  size_t struct_bytes;
  isthmus_fused_kind kind;
  isthmus_fused_mode mode;
  uint64_t m, n, k;  // in elements, see above; m is a multiple of size (GEMM_ALLREDUCE: any); each may be 0
  isthmus_datatype input;   // of A and B: float16, bfloat16 or float32
  isthmus_datatype output;  // of C and bias: float32 or the input type
  isthmus_matrix_layout b_layout;
  uint32_t flags;          // ISTHMUS_FUSED_...
  uint64_t lda, ldb, ldc;  // elements between rows (columns of a column-major B); 0: dense
  uint32_t chunks;         // number of chunks per remote shard; 0: the cost model decides; GEMM_ALLREDUCE: 0
} isthmus_fused_description;

typedef struct isthmus_fused_plan_impl* isthmus_fused_plan;

// Creates a plan. Collective and blocking. May measure products and copies for the
// cost model (docs/guide/fused.md).
// Lifetime: the plan owns its workspace. Destroy it before the communicator.
ISTHMUS_API isthmus_status isthmus_fused_plan_create(isthmus_communicator communicator,
                                                     const isthmus_fused_description* description,
                                                     isthmus_fused_plan* plan);

// Selects the parts of a run to execute. Benchmarks can run the products or the collective alone, on the
// current contents of the workspace. COMMUNICATION_ONLY leaves C of ALLGATHER_GEMM unchanged.
typedef enum isthmus_fused_view {
  ISTHMUS_FUSED_WHOLE = 0,
  ISTHMUS_FUSED_COMPUTE_ONLY = 1,
  ISTHMUS_FUSED_COMMUNICATION_ONLY = 2
} isthmus_fused_view;

// The arguments of a run. Buffers need the alignment of their elements and must not overlap C or gathered_a.
//
// ALLGATHER_GEMM on the host platform: peers read A in place if it lies in the symmetric heap (memory.h), at the same
// offset of the same block on all ranks. If A lies outside the heap on all ranks, it is staged, and info reports that. If
// only some ranks use the heap, a run returns ISTHMUS_ERROR_MISMATCH. On devices, A can be in any memory of the device.
typedef struct isthmus_fused_arguments {
  size_t struct_bytes;
  const void* a;
  const void* b;
  void* c;
  const void* bias;  // n elements, added to every row; may be NULL
  void* gathered_a;  // ALLGATHER_GEMM: receives all of A[m x k], dense; may be NULL
  double alpha;
  double beta;  // 0: C is not read
  isthmus_fused_view view;
  isthmus_stream stream;
} isthmus_fused_arguments;

// Runs a plan. Collective; alpha, beta, view and the presence of optional buffers must be equal on all ranks.
ISTHMUS_API isthmus_status isthmus_fused_run(isthmus_fused_plan plan, const isthmus_fused_arguments* arguments);

// Describes a plan as JSON: the mode and the reason for it, chunks, row groups in the order of computation,
// predicted and measured times, libraries, workspace bytes, and notes, for example about staged buffers. `json`,
// `capacity` and `required_bytes` are as in isthmus_communicator_info().
//   predicted_us  product: of all rows; transfer: of all rows, by the faster way; bound: the larger one of both;
//                 pipelined and sequential: of both modes. null without measured costs: a device plan that cannot be
//                 pipelined, or ranks on several machines.
//   measured_us   of this rank's latest run with each view: product, transfer and whole. null before the first such
//                 run. On devices, only with ISTHMUS_FUSED_TRACE.
// Blocking: with ISTHMUS_FUSED_TRACE, waits for this rank's latest run.
ISTHMUS_API isthmus_status isthmus_fused_plan_info(isthmus_fused_plan plan, char* json, size_t capacity,
                                                   size_t* required_bytes);

// Describes this rank's most recent run of a plan in the Chrome trace format, which Perfetto reads. The plan
// needs ISTHMUS_FUSED_TRACE. The trace has one slice per transferred chunk and per product, with times in
// microseconds of the machine's monotonic clock.
// Blocking: waits for that run.
ISTHMUS_API isthmus_status isthmus_fused_plan_trace(isthmus_fused_plan plan, char* json, size_t capacity,
                                                    size_t* required_bytes);

// Waits for this rank's runs, and on devices for the peers that receive its chunks, each up to the timeout. Then releases
// the plan. NULL is allowed.
// Graphs: runs can be captured (HIP: only those of sequential plans). Isthmus does not order launches with other runs of the
// plan. Use one stream, or events, and the same order on all ranks. Destroy the plan after the last launch has ended,
// because the wait does not cover launches.
ISTHMUS_API isthmus_status isthmus_fused_plan_destroy(isthmus_fused_plan plan);

#ifdef __cplusplus
}
#endif
#endif
