// What else happens on a thread that waits for other ranks: how a language with signal handlers of its own
// (Python's Ctrl-C) gets a say, and how another library gets on meanwhile.
#ifndef ISTHMUS_INTERRUPT_H
#define ISTHMUS_INTERRUPT_H

#include <isthmus/isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

// Called on the waiting thread, a few tens of milliseconds after a wait began and again as often. 0: go on
// waiting. Anything else ends the call with ISTHMUS_ERROR_ABORTED; a communicator whose operation was under way
// is poisoned then, because the other ranks may have taken their part: destroy it on every rank. It must not
// throw, and must not call this library.
typedef int (*isthmus_interrupt_check)(void* context);

// Sets the calling thread's check, or removes it with NULL. Waits inside a vendor's library, MPI's blocking
// calls included, can't be ended this way.
ISTHMUS_API isthmus_status isthmus_set_interrupt_check(isthmus_interrupt_check check, void* context);

// Called on the thread whose call waits for other ranks, a few microseconds after the wait began and again as
// often until it ends. It must not throw, and must not call this library.
typedef void (*isthmus_progress)(void* context);

// For a library whose own messages get on only while somebody calls it (MPI): what its caller waits for in
// Isthmus may wait for such a message. Such a wait yields its core but never sleeps. `progress` NULL: none, as
// at first. Set it while no call on the communicator runs; backends whose waits are not on the host don't use
// it.
ISTHMUS_API isthmus_status isthmus_communicator_set_progress(isthmus_communicator communicator,
                                                             isthmus_progress progress, void* context);

#ifdef __cplusplus
}
#endif
#endif
