// Which engine serves a platform.
#pragma once

#include <isthmus/tensor_parallel.h>

#include "selection/selection.hpp"

namespace isthmus::tensor_parallel {

// The host's own, or the first plug-in that exports an engine for `platform`. Throws error (UNSUPPORTED)
// with the places that were searched where there is none.
const isthmus_tensor_parallel_engine& find_engine(isthmus_platform platform,
                                                  const selection::configuration& rules);

// "" or what is wrong with an engine's header.
std::string check_engine(const isthmus_tensor_parallel_engine* engine, isthmus_platform platform);

}  // namespace isthmus::tensor_parallel
