// The calling thread's say in its own waits (isthmus/interrupt.h). Every loop that waits for other ranks asks.
#pragma once

namespace isthmus {

using interrupt_check = int (*)(void* context);  // isthmus_interrupt_check

// The calling thread's check from now on; nullptr: none.
void set_interrupt_check(interrupt_check check, void* context) noexcept;

// True when this thread's check wants the wait to end. Cheap: it asks the check only now and then.
bool is_interrupted() noexcept;

// While one lives, this thread calls no progress function of the program's: it is a backend's own, inside of a
// call of another thread, which does.
class suspend_progress {
 public:
  suspend_progress() noexcept { s_depth += 1; }
  ~suspend_progress() { s_depth -= 1; }
  suspend_progress(const suspend_progress&) = delete;
  suspend_progress& operator=(const suspend_progress&) = delete;
  static bool is_active() noexcept { return s_depth > 0; }

 private:
  static inline constinit thread_local int s_depth = 0;
};

// Throws error (ABORTED) that says what was interrupted.
void throw_if_interrupted(const char* activity);

}  // namespace isthmus
