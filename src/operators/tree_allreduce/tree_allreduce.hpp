// Implements isthmus/tree_allreduce.h.
#pragma once

#include <isthmus/tree_allreduce.h>

#include "core/communicator.hpp"

namespace isthmus {

// See isthmus_tree_allreduce().
// Errors: throws error. Nothing is written if an argument is invalid.
void tree_allreduce(communicator& ranks, const void* leaves, std::uint64_t leaf_count, void* recv_buf,
                    std::uint64_t count, isthmus_datatype datatype);

}  // namespace isthmus
