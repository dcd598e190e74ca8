// Which calls of NCCL the engine took, and why one was left to NCCL. Calls are known by Isthmus' number.
#pragma once

#include <isthmus/types.h>

#include "frontends/preload/ledger.hpp"

namespace isthmus::nccl_shim {

enum class reason {
  nothing_to_move,
  left_to_check,
  operation,
  configuration,
  rule,
  no_backend,
  message,
  unknown_communicator,
  one_rank,
  non_blocking,
  no_meeting,
  not_attached,
  lost,
};
inline constexpr int reason_count = 13;

// Of this process; a report is asked for by ISTHMUS_NCCL_REPORT.
preload::call_statistics& statistics();

inline void count_passed_through(isthmus_collective which, reason why) noexcept {
  statistics().count_passed_through(static_cast<int>(which), static_cast<int>(why));
}

const char* text_of(reason why);

}  // namespace isthmus::nccl_shim
