// The mismatch check (`check = true`, ISTHMUS_CHECK=1): before a call starts the ranks compare what they are
// about to do, so that no data moves between calls that do not belong together.
#pragma once

#include <isthmus/types.h>

#include <string>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// The call as all ranks must make it, for an error's reader. `path`: "backend:algorithm".
std::string signature_text(const isthmus_operation& operation, int size, const std::string& path);

// Collective. Throws error (MISMATCH) on every rank, with all texts and their ranks, where the texts differ.
// Calls of a group are lines; the first line that differs is told.
void compare_calls(bootstrap& ranks, const std::string& mine);

}  // namespace isthmus
