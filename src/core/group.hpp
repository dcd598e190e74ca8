// Groups: operations, splits and shrinks of one thread that start together.
#pragma once

#include <isthmus/types.h>

namespace isthmus::group {  // all functions act on the calling thread's group

// Number of nested open groups. Every call reads this variable, so it is a plain variable without a destructor.
// It must not use the initial-exec TLS model: dlopen (as in Python's import) would fail, because all
// thread-local variables of the library would have to fit into the loader's small static surplus.
extern constinit thread_local int depth;
inline bool is_active() noexcept { return depth > 0; }
// For calls that cannot be part of a group. Errors: throws ISTHMUS_ERROR_INVALID_USAGE if the thread has a group.
void reject_active(const char* function);

void start();
// The outermost end() starts the work and leaves the group empty. Errors: throws the first failure.
void end();

// Validates and stores the operation, with copies of its arrays.
// Errors: throws if the operation is invalid. The outermost end() then throws the same error
// and starts nothing.
void add(isthmus_communicator handle, const isthmus_operation& operation);

// Stores a split. The outermost end() writes `*result`.
void add_split(isthmus_communicator parent, int color, int key, isthmus_communicator* result);

// Stores a shrink. The outermost end() writes `*result`.
void add_shrink(isthmus_communicator parent, double wait_s, isthmus_communicator* result);

// Returns true if the group holds work of this communicator.
bool has_work_for(isthmus_communicator handle);

}  // namespace isthmus::group
