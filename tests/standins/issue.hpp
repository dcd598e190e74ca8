// How the native entry points hand a call to the engine.
#pragma once

#include <functional>

#include "engine.hpp"

namespace standin {

// Records the call, then starts it or adds it to the calling thread's open group.
int issue(const char* function, void* comm, request call);

// Keeps the making of a communicator for the end of the calling thread's group; false: none is open.
bool defer(std::function<int()> setup);

// The calling thread's group. The end of the outermost one starts what was issued in it.
int start_group();
int end_group(const char* function);
int simulate_group_end();  // nothing of it starts

}  // namespace standin
