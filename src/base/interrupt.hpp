// The calling thread's say in its own waits (isthmus/interrupt.h). Every loop that waits for other ranks asks.
#pragma once

namespace isthmus {

using interrupt_check = int (*)(void* context);  // isthmus_interrupt_check

// The calling thread's check from now on; nullptr: none.
void set_interrupt_check(interrupt_check check, void* context) noexcept;

// True when this thread's check wants the wait to end. Cheap: it asks the check only now and then.
bool interrupted() noexcept;

// Throws error (ABORTED) that says what was interrupted.
void throw_if_interrupted(const char* activity);

}  // namespace isthmus
