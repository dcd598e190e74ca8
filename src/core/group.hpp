// Groups: operations (splits and shrinks, too) of one thread that start together.
#pragma once

#include <isthmus/types.h>

namespace isthmus::group {  // all functions work on the calling thread's own group

// How many groups are open. Every call reads it, so it is a plain variable without a destructor. Not of
// the initial-exec TLS model: then the library could not be loaded by dlopen (Python's import), because all
// its thread-local variables would have to fit into the loader's small static surplus.
extern constinit thread_local int depth;
inline bool is_active() noexcept { return depth > 0; }

void start();
// The outermost end starts the work; throws the first failure. After it the group is empty.
void end();

// Checks the operation and keeps it, with copies of its arrays. An invalid one throws, and makes the
// outermost end throw the same without starting anything.
void add(isthmus_communicator handle, const isthmus_operation& operation);

// Keeps a split; `*result` is written by the outermost end.
void add_split(isthmus_communicator parent, int color, int key, isthmus_communicator* result);

// The same for a shrink.
void add_shrink(isthmus_communicator parent, double wait_s, isthmus_communicator* result);

// True when the group holds work of this communicator.
bool has_work_for(isthmus_communicator handle);

}  // namespace isthmus::group
