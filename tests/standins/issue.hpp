// The interface between the native entry points and the engine.
#pragma once

#include <functional>

#include "engine.hpp"

namespace standin {

// Records the call, then starts it or adds it to the calling thread's open group.
int issue(const char* function, void* comm, request call);

// Defers the creation of a communicator to the end of the calling thread's group. Returns false if
// no group is open.
bool defer(std::function<int()> setup);

// The group of the calling thread. Ending the outermost group starts its calls.
int start_group();
int end_group(const char* function);
int simulate_group_end();  // nothing in it starts

}  // namespace standin
