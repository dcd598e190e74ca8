// What one plan computes: the description, checked and completed, as this rank sees it.
#pragma once

#include <isthmus/fused.h>

#include <cstdint>
#include <string>

#include "core/communicator.hpp"

namespace isthmus::fused {

struct fused_problem {
  isthmus_fused_description description{};  // leading dimensions filled in
  int rank = 0, size = 1;
  std::uint64_t shard_rows = 0;  // m / size

  bool is_gather() const { return description.kind == ISTHMUS_FUSED_ALLGATHER_GEMM; }
  // What moves the rows where nothing is pipelined.
  isthmus_collective collective() const { return is_gather() ? ISTHMUS_ALLGATHER : ISTHMUS_REDUCE_SCATTER; }
  bool is_traced() const { return (description.flags & ISTHMUS_FUSED_TRACE) != 0; }
  std::uint64_t input_bytes() const { return isthmus_datatype_bytes(description.input); }
  std::uint64_t output_bytes() const { return isthmus_datatype_bytes(description.output); }
  std::uint64_t a_rows() const { return is_gather() ? shard_rows : description.m; }
  std::uint64_t c_rows() const { return is_gather() ? description.m : shard_rows; }
  // Elements from the first to the last, gaps of the leading dimension included.
  std::uint64_t a_extent() const;
  std::uint64_t b_extent() const;
  std::uint64_t c_extent() const;
  std::uint64_t shard_bytes() const { return shard_rows * description.k * input_bytes(); }
  // Of one row of A, or of partial sums of C, on its way; of one rank's rows of it.
  std::uint64_t moved_row_bytes() const {
    return is_gather() ? description.k * input_bytes() : description.n * output_bytes();
  }
  std::uint64_t moved_bytes() const { return shard_rows * moved_row_bytes(); }
  double flops(std::uint64_t rows) const;
};

// Collective: all ranks return, or all throw: this rank's own error (INVALID_ARGUMENT, UNSUPPORTED),
// REMOTE with another rank's status, or MISMATCH that names the field, two ranks and their values.
fused_problem agree_on_problem(communicator& owner, const isthmus_fused_description* given);

// Throws error (INVALID_ARGUMENT, UNSUPPORTED) that names the argument, its value and the rule. Local.
void check_arguments(const fused_problem& problem, isthmus_platform platform, const isthmus_fused_arguments* given);

}  // namespace isthmus::fused
