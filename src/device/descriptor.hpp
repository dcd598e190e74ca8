// Takes file descriptors from other processes of this user.
#pragma once

#include <cstdint>

namespace isthmus {

// A descriptor of this process for the same open file as `descriptor` of process `pid`, which must live.
// Throws error (SYSTEM, errno) where the kernel or its policy does not let this process take it.
int duplicate_descriptor(std::int64_t pid, int descriptor);

}  // namespace isthmus
