// Allreduce (sum), residual addition and RMSNorm in one call: the operations between two layers of a transformer with
// tensor parallelism. See docs/guide/fused.md.
//
// Results:
//   sum         = contributions of all ranks, added in float32 in rank order, rounded to the datatype
//   residual    = sum + residual, added in float32, rounded to the datatype
//   normalized  = residual * 1 / sqrt(mean of residual^2 over the row + eps) * weight, computed in float32 in this
//                 order, rounded to the datatype; with `round_before_weight`, also rounded before the last product
//   quantized   = normalized / scale, divided in float32, rounded to float8_e4m3; values that are too large become the
//                 largest finite value
//   Every step rounds to nearest even. The squares of a row are added in float32, in an order that depends only on
//   `hidden` and the datatype (docs/guide/fused.md). All ranks of one machine that pass the same residual and weight
//   therefore get the same bits, on the host and on devices, for every algorithm and number of tokens. The residual has
//   the bits of an allreduce in rank order (docs/guide/determinism.md) that is followed by an addition. With several
//   nodes, this needs the option `deterministic`. Signs and payloads of NaN are not specified.
//
// Ordering:
//   Device platforms: the call is ordered by its stream, does not block the host, and can be captured into graphs.
//   Host platform: the call returns when all outputs are complete.
#ifndef ISTHMUS_ALLREDUCE_RMSNORM_H
#define ISTHMUS_ALLREDUCE_RMSNORM_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_RMSNORM_MAX_HIDDEN 16384u

// Zero-initialize the struct and set `struct_bytes = sizeof`. Matrices are dense and row-major, one row for each token.
// Buffers need the alignment of their elements; 16-byte accesses need rows and buffers at multiples of 16 bytes.
// Aliases: residual_out may be `residual` or `input`, and `normalized` may be `input` if both have the same datatype.
// Otherwise, outputs must not overlap other buffers.
typedef struct isthmus_allreduce_rmsnorm_arguments {
  size_t struct_bytes;
  uint64_t tokens;            // rows; 0: the call does nothing
  uint64_t hidden;            // elements of a row, 1 to ISTHMUS_RMSNORM_MAX_HIDDEN
  isthmus_datatype datatype;  // of input, residual, weight and residual_out: float16, bfloat16 or float32
  isthmus_datatype output;    // of normalized: `datatype` or float8_e4m3
  double eps;                 // finite and at least 0; used as float32
  const void* input;          // [tokens x hidden]: the contribution of this rank
  const void* residual;       // [tokens x hidden]
  const void* weight;         // [hidden]
  void* residual_out;         // [tokens x hidden]
  void* normalized;           // [tokens x hidden]
  // float8_e4m3 only, exactly one of them (tokens = 0: at most one). On device platforms, both are in device memory.
  // scale [1]: the scale of all rows. scales [tokens]: receives the scales of the rows, the largest magnitude / 448, or
  // 1 if that is 0.
  const float* scale;
  float* scales;
  isthmus_stream stream;
  // 1: round to the datatype before the product with the weight, as LlamaRMSNorm of transformers. 0: only after it, as
  // torch.nn.RMSNorm. Without effect for float32.
  int32_t round_before_weight;
} isthmus_allreduce_rmsnorm_arguments;

// Collective. Sizes, datatypes, eps, round_before_weight, and the choice between `scale` and `scales`, are equal on all
// ranks of the communicator.
// Errors: nothing is written if an argument is invalid. ISTHMUS_ERROR_UNSUPPORTED on devices without the backend `p2p`,
// or if the communicator has one rank on a device. ISTHMUS_ERROR_INVALID_USAGE inside a group. ISTHMUS_ERROR_MISMATCH on
// all ranks if arguments differ between ranks; on devices, only with the option `check`.
ISTHMUS_API isthmus_status isthmus_allreduce_rmsnorm(isthmus_communicator communicator,
                                                     const isthmus_allreduce_rmsnorm_arguments* arguments);

#ifdef __cplusplus
}
#endif
#endif
