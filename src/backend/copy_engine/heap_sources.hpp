// Whether the peers can fetch straight out of the user's buffers.
#pragma once

#include <isthmus/backend.h>

#include "backend/copy_engine/call.hpp"

namespace isthmus::copy_engine {

// Why gather and scatter never can, for rules that name them; nullptr where it depends on the buffers.
const char* never_from_heap(isthmus_collective collective);

// Fills `sources`; sources.all is false where this rank's buffers are not in the symmetric heap. Readers
// compute the sources' addresses from their own, so every rank has to use the same place of the same block:
// the tags of the signals prove it.
void find_sources(const isthmus_backend_context& context, const isthmus_operation& operation,
                  const movement& moved, heap_sources& sources);

}  // namespace isthmus::copy_engine
