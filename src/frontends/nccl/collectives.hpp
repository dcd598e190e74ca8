// NCCL's collectives and messages, each taken or passed on.
#pragma once

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {

// The engine's function for a name of NCCL; NULL: it is none of these, or this NCCL has none.
any_function find_collective(const char* name);

}  // namespace isthmus::nccl_shim
