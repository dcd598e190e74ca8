// Symmetric heap memory on devices, backed by shared blocks of the driver.
#pragma once

#include "memory/heap/heap_source.hpp"

namespace isthmus {

// Throws error (UNSUPPORTED) if the driver of the platform is not available.
std::unique_ptr<heap_source> make_device_heap_source(isthmus_device device);

}  // namespace isthmus
