// Whether peers can reach the user's own buffers, and where.
#pragma once

#include <isthmus/backend.h>

#include "backend/copy_engine/call.hpp"

namespace isthmus::copy_engine {

// Why a collective never can go that way, for rules that name such a way; nullptr where it depends on the
// buffers.
const char* never_in_heap(isthmus_collective collective);

// Fills `places`; places.all is false where this rank's buffers are not in the symmetric heap. A rank computes
// its peers' addresses from its own, so every rank has to use the same place of the same block: the tags of
// the signals prove it.
void find_places(const isthmus_backend_context& context, const isthmus_operation& operation,
                 const movement& moved, way how, heap_places& places);

}  // namespace isthmus::copy_engine
