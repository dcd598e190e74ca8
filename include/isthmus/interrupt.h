// Callbacks on a thread that waits for other ranks. A language with its own signal handlers uses them to
// interrupt the wait (Ctrl-C in Python); another communication library can use them to make progress.
#ifndef ISTHMUS_INTERRUPT_H
#define ISTHMUS_INTERRUPT_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// Decides whether a wait continues. Called on the waiting thread every few tens of milliseconds.
// Returns: 0 continues the wait. Any other value ends the call with ISTHMUS_ERROR_ABORTED. If an operation was
// in progress, the communicator is aborted, because the other ranks may have completed their part. Destroy it
// on every rank.
// Limits: the function must not throw and must not call Isthmus.
typedef int (*isthmus_interrupt_check)(void* context);

// Sets the interrupt check of the calling thread; NULL removes it. Waits inside a vendor library, including
// blocking MPI calls, cannot be interrupted.
ISTHMUS_API isthmus_status isthmus_set_interrupt_check(isthmus_interrupt_check check, void* context);

// Makes progress in another library. Called on the waiting thread every few microseconds until the wait ends.
// It must not throw and must not call Isthmus.
typedef void (*isthmus_progress)(void* context);

// Sets the progress callback of a communicator; NULL (the default) removes it. Needed for libraries that only
// make progress while they are called, such as MPI, because a peer may have to receive a message of that
// library before it enters an Isthmus call. Waits with a progress callback yield the core but never sleep.
// Backends that do not wait on the host ignore the callback.
// Thread safety: call it while no other call on the communicator runs.
ISTHMUS_API isthmus_status isthmus_communicator_set_progress(isthmus_communicator communicator,
                                                             isthmus_progress progress, void* context);

#ifdef __cplusplus
}
#endif
#endif
