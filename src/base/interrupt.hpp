// Interruption of waits by the calling thread (isthmus/interrupt.h). Every loop that waits for other ranks
// polls the interrupt check.
#pragma once

namespace isthmus {

using interrupt_check = int (*)(void* context);  // isthmus_interrupt_check

// Sets the interrupt check of the calling thread; nullptr removes it.
void set_interrupt_check(interrupt_check check, void* context) noexcept;

// Returns true if the interrupt check of this thread requests that the wait ends. Cheap: the check runs at most
// every 40 ms.
bool is_interrupted() noexcept;

// RAII: suppresses the program's progress function on this thread. Used by threads of a backend that work on
// behalf of a blocked caller, because the caller's own thread runs the progress function.
class progress_suspension {
 public:
  progress_suspension() noexcept { s_depth += 1; }
  ~progress_suspension() { s_depth -= 1; }
  progress_suspension(const progress_suspension&) = delete;
  progress_suspension& operator=(const progress_suspension&) = delete;
  static bool is_active() noexcept { return s_depth > 0; }

 private:
  static inline constinit thread_local int s_depth = 0;
};

// Throws error (ABORTED) if is_interrupted(); the message names `activity`.
void throw_if_interrupted(const char* activity);

}  // namespace isthmus
