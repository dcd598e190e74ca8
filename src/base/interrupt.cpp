#include "base/interrupt.hpp"

#include <chrono>

#include "base/error.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
constexpr auto interval = std::chrono::milliseconds(40);

struct thread_check {
  interrupt_check check = nullptr;
  void* context = nullptr;
  clock::time_point next{};
};
thread_local thread_check this_thread;

}  // namespace

bool is_interrupted() noexcept {
  if (this_thread.check == nullptr) return false;
  const auto now = clock::now();
  if (now < this_thread.next) return false;
  this_thread.next = now + interval;
  if (this_thread.check(this_thread.context) == 0) return false;
  this_thread.next = {};  // the next wait checks immediately
  return true;
}

void set_interrupt_check(interrupt_check check, void* context) noexcept { this_thread = {check, context, {}}; }

void throw_if_interrupted(const char* activity) {
  if (is_interrupted())
    throw make_error(ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE, fmt::format("{} was interrupted", activity),
                     "the interrupt check of this thread ended the wait; see isthmus/interrupt.h");
}

}  // namespace isthmus
