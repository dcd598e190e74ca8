// Collectives by kernels that store straight into peer memory: the shortest way for what an LLM decodes with.
#pragma once

#include <isthmus/backend.h>

namespace isthmus::p2p {

const isthmus_backend* p2p_backend() noexcept;

}  // namespace isthmus::p2p
