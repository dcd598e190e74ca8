// How the native entry points hand a call to the engine.
#pragma once

#include "engine.hpp"

namespace standin {

// Records the call, then starts it or adds it to the calling thread's open group.
int issue(const char* function, void* comm, request call);

}  // namespace standin
