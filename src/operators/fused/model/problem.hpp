// The problem that a plan computes: its description, checked and completed, as seen by this rank.
#pragma once

#include <isthmus/fused.h>

#include <cstdint>
#include <string>

#include "core/communicator.hpp"

namespace isthmus::fused {

struct fused_problem {
  isthmus_fused_description description{};  // with all leading dimensions set
  int rank = 0, size = 1;
  std::uint64_t shard_rows = 0;  // m / size; GEMM_ALLREDUCE: m

  bool is_gather() const { return description.kind == ISTHMUS_FUSED_ALLGATHER_GEMM; }
  bool is_allreduce() const { return description.kind == ISTHMUS_FUSED_GEMM_ALLREDUCE; }
  // The collective that transfers the rows in sequential mode.
  isthmus_collective collective() const {
    if (is_allreduce()) return ISTHMUS_ALLREDUCE;
    return is_gather() ? ISTHMUS_ALLGATHER : ISTHMUS_REDUCE_SCATTER;
  }
  int previous() const { return (rank - 1 + size) % size; }
  int next() const { return (rank + 1) % size; }
  bool is_traced() const { return (description.flags & ISTHMUS_FUSED_TRACE) != 0; }
  std::uint64_t input_bytes() const { return isthmus_datatype_bytes(description.input); }
  std::uint64_t output_bytes() const { return isthmus_datatype_bytes(description.output); }
  std::uint64_t a_rows() const { return is_gather() ? shard_rows : description.m; }
  std::uint64_t c_rows() const { return is_gather() ? description.m : shard_rows; }
  // Number of elements from the first to the last one, including the gaps of the leading dimension.
  std::uint64_t a_extent() const;
  std::uint64_t b_extent() const;
  std::uint64_t c_extent() const;
  // Bytes of one transferred row (A, or partial sums of C), and of all transferred rows of one rank.
  std::uint64_t moved_row_bytes() const {
    return is_gather() ? description.k * input_bytes() : description.n * output_bytes();
  }
  std::uint64_t moved_bytes() const { return shard_rows * moved_row_bytes(); }
  double flops(std::uint64_t rows) const;
};

// The name of a constant of fused.h, without its prefix.
const char* kind_name(isthmus_fused_kind kind);

// Factors of a product C = alpha * A * B + beta * C + bias.
struct product_scalars {
  float alpha, beta;
  const void* bias;  // may be null
};

// Collective.
// Errors: either all ranks throw or none does. A rank throws its own error (INVALID_ARGUMENT, UNSUPPORTED),
// REMOTE with the status of another rank, or MISMATCH with the field, two ranks and their values.
fused_problem agree_on_problem(communicator& owner, const isthmus_fused_description* description);

// Local.
// Errors: throws error (INVALID_ARGUMENT, UNSUPPORTED) that names the argument, its value and the rule.
void check_arguments(const fused_problem& problem, isthmus_platform platform,
                     const isthmus_fused_arguments* arguments);

}  // namespace isthmus::fused
