// Interruption of waits by the calling thread (isthmus/interrupt.h). Every loop that waits for other ranks
// polls the interrupt check.
#pragma once

#include <isthmus/interrupt.h>

#include <chrono>

#include "base/error.hpp"

namespace isthmus {

// The interrupt check of a thread; `check` is nullptr if it has none.
struct thread_interrupt {
  isthmus_interrupt_check check = nullptr;
  void* context = nullptr;
  std::chrono::steady_clock::time_point next_check{};
};
inline constinit thread_local thread_interrupt own_interrupt;

// Returns true if the interrupt check of this thread requests that the wait ends. Cheap: the check runs at most
// every 40 ms.
inline bool is_interrupted() noexcept {
  constexpr auto interval = std::chrono::milliseconds(40);
  if (own_interrupt.check == nullptr) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now < own_interrupt.next_check) return false;
  own_interrupt.next_check = now + interval;
  if (own_interrupt.check(own_interrupt.context) == 0) return false;
  own_interrupt.next_check = {};  // the next wait checks immediately
  return true;
}

// Throws error (ABORTED) if is_interrupted(); the message names `activity`.
inline void throw_if_interrupted(const char* activity) {
  if (is_interrupted())
    throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE, fmt::format("{} was interrupted", activity),
                     "the interrupt check of this thread ended the wait; see isthmus/interrupt.h");
}

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

}  // namespace isthmus
