// Finds the tensor-parallel engine of a platform.
#pragma once

#include <isthmus/tensor_parallel.h>

#include "selection/selection.hpp"

namespace isthmus::tensor_parallel {

// Returns the built-in engine for the host platform. For other platforms, returns the engine of the first
// plug-in that supports `platform`.
// Errors: throws error (UNSUPPORTED) that lists the available plug-ins.
const isthmus_tensor_parallel_engine& find_engine(isthmus_platform platform,
                                                  const selection::configuration& rules);

// Returns "", or the reason why the engine cannot be used.
std::string check_engine(const isthmus_tensor_parallel_engine* engine, isthmus_platform platform);

}  // namespace isthmus::tensor_parallel
