// The mismatch check (`check = true`, ISTHMUS_CHECK=1): before a call starts, the ranks compare their calls, so
// that no data moves between calls that do not match.
#pragma once

#include <isthmus/types.h>

#include <string>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// Returns the properties of a call that must be equal on all ranks, as text for error messages. `path` has
// the form "backend:algorithm".
std::string signature_text(const isthmus_operation& operation, int size, const std::string& path);

// Collective. Each line of `contribution` is one call of a group.
// Errors: if the texts differ, throws error (MISMATCH) on every rank. It reports the first line that differs,
// with the text of each rank.
void compare_calls(bootstrap& ranks, const std::string& contribution);

}  // namespace isthmus
