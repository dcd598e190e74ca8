// The backends inside libisthmus.so, in the order in which info lists them. The definition is generated from
// the list in src/CMakeLists.txt, so the core does not depend on any backend.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus {

std::vector<const isthmus_backend*> builtin_backends();

}  // namespace isthmus
