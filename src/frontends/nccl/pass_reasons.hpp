// Counts which NCCL calls the engine handled, and why others were passed through to NCCL. A call is
// identified by its isthmus_collective.
#pragma once

#include <isthmus/types.h>

#include "frontends/preload/call_statistics.hpp"

namespace isthmus::nccl_shim {

enum class pass_reason_code {
  no_data,
  checked_by_nccl,
  operation,
  configuration,
  rule,
  no_backend,
  message,
  unknown_communicator,
  one_rank,
  non_blocking,
  no_id,
  not_attached,
  rank_lost,
};
inline constexpr int reason_count = 13;

// The statistics of this process. ISTHMUS_NCCL_REPORT enables the report.
preload::call_statistics& statistics();

inline void count_passed_through(isthmus_collective collective, pass_reason_code reason) noexcept {
  statistics().count_passed_through(static_cast<int>(collective), static_cast<int>(reason));
}

const char* reason_text(pass_reason_code reason);

}  // namespace isthmus::nccl_shim
