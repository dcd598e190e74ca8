// Backend p2p: collectives with kernels that store directly into peer memory. It has the lowest latency for the
// short messages of LLM decoding.
#pragma once

#include <isthmus/backend.h>

namespace isthmus::p2p {

const isthmus_backend* p2p_backend() noexcept;

}  // namespace isthmus::p2p
