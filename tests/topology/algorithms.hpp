// Algorithm names for tests that call a backend without the runtime.
#pragma once

#include <isthmus/backend.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace topology {

// Returns the index of `name` in a backend's algorithms, as the runtime passes it. NULL is any algorithm.
// Errors: throws std::invalid_argument if the backend has no such algorithm.
inline int algorithm_index(const char* const* algorithms, const char* name) {
  if (name == nullptr) return ISTHMUS_ANY_ALGORITHM;
  for (int index = 0; algorithms != nullptr && algorithms[index] != nullptr; ++index)
    if (std::strcmp(algorithms[index], name) == 0) return index;
  throw std::invalid_argument("unknown algorithm " + std::string(name));
}

}  // namespace topology
