// The backends inside libisthmus.so, in the order in which info lists them.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus {

std::vector<const isthmus_backend*> builtin_backends();

}  // namespace isthmus
