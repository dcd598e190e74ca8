// The fuzz targets are built without backends.
#include "core/plugin.hpp"

std::vector<const isthmus_backend*> isthmus::builtin_backends() { return {}; }
