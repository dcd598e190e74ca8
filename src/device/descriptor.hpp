// Duplicates file descriptors of other processes of the same user.
#pragma once

#include <cstdint>

namespace isthmus {

// Returns a new descriptor for the same open file as `descriptor` of process `pid`, which must be alive.
// Errors: throws isthmus::error (SYSTEM, errno) if the kernel or its policy does not allow it.
int duplicate_descriptor(std::int64_t pid, int descriptor);

}  // namespace isthmus
