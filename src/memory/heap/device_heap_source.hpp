// The symmetric heap's memory on a device: the driver's shared blocks.
#pragma once

#include "memory/heap/heap_source.hpp"

namespace isthmus {

// Throws error (UNSUPPORTED) where the platform has no driver here.
std::unique_ptr<heap_source> make_device_heap_source(isthmus_device device);

}  // namespace isthmus
