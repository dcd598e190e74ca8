// How the native entry points hand a call to the engine.
#pragma once

#include "engine.hpp"

namespace standin {

// Records the call, then starts it or adds it to the calling thread's open group.
int issue(const char* function, void* comm, request call);

// The calling thread's group. The end of the outermost one starts what was issued in it.
int start_group();
int end_group(const char* function);

}  // namespace standin
