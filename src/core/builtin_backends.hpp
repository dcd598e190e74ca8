// The backends inside libisthmus.so, in the order in which info lists them. The core knows none of them: the
// function is generated from the list in src/CMakeLists.txt.
#pragma once

#include <isthmus/backend.h>

#include <vector>

namespace isthmus {

std::vector<const isthmus_backend*> builtin_backends();

}  // namespace isthmus
