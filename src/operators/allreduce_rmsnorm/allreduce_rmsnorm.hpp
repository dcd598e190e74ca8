// Implements isthmus/allreduce_rmsnorm.h.
#pragma once

#include <isthmus/allreduce_rmsnorm.h>

#include "core/communicator.hpp"

namespace isthmus {

// See isthmus_allreduce_rmsnorm().
// Errors: throws error. Nothing is written if an argument is invalid.
void allreduce_rmsnorm(communicator& ranks, const isthmus_allreduce_rmsnorm_arguments* arguments);

}  // namespace isthmus
