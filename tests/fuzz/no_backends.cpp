// For the fuzzers, which are built without the backends.
#include "core/builtin_backends.hpp"

std::vector<const isthmus_backend*> isthmus::builtin_backends() { return {}; }
