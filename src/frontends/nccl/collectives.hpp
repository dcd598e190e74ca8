// Entry points for NCCL's collectives and messages. Each call is handled by Isthmus or passed through.
#pragma once

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {

// The engine's function for an NCCL function name. NULL if the name is not a collective or message, or if this
// NCCL does not have the function.
any_function find_collective(const char* name);

}  // namespace isthmus::nccl_shim
