// The one watchdog of streams. A stream that waits for a rank which died waits for ever, and a call into a
// native library may not return: nobody but a thread that looks from outside can end that. The process has one
// such thread for everything that is watched; it runs while there is something.
//
// It needs nothing of Isthmus, because libraries that reach the core by its C ABI only compile it, too: they
// then have a thread of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace isthmus {

using watchdog_clock = std::chrono::steady_clock;

// The oldest operation that has begun and has not ended.
struct watched_operation {
  std::uint64_t id = 0;  // another one for each operation; 0: there is none
  // When it began; none: when the watchdog first saw it.
  std::optional<watchdog_clock::time_point> since;
};

// What is watched, and what is done about it. The functions are called by the watchdog's thread, one at a time,
// and return soon: others are looked at by the same thread. Those marked optional may be empty.
struct watch_options {
  std::chrono::duration<double> timeout{};
  std::chrono::milliseconds interval{100};  // between two looks, at most
  std::function<watched_operation()> operation;
  // The operation lasts, and is not late yet: every `wait_interval`. Optional.
  std::function<void(std::uint64_t id)> on_wait;
  std::chrono::milliseconds wait_interval{500};
  // It has lasted for `timeout`; at each look, as long as it lasts. False: it has not, the same id has come
  // again unseen, and its time starts anew.
  std::function<bool(std::uint64_t id)> on_stuck;
  // on_wait and on_stuck may take seconds (a library ends its own kernels): they run in a thread of their own,
  // one at a time, and what on_stuck returns is not used.
  bool has_slow_actions = false;
  // Whether somebody gave up; the operation is not asked for any more then. Optional, together with on_abort.
  std::function<bool()> aborted;
  // Releases what waits. True when there is nothing left to do, else it is called again at the next look.
  std::function<bool()> on_abort;
  // One of the functions threw, with what it said: the device failed. Optional.
  std::function<void(const char* what)> on_error;
};

// Under the watchdog's eyes from construction to destruction, which waits until none of the functions runs any
// more; so none of them may destroy it. Thread-safe.
class watch {
 public:
  explicit watch(watch_options options);
  ~watch();
  watch(const watch&) = delete;
  watch& operator=(const watch&) = delete;

  // Looks at once.
  void wake();

 private:
  class entry;
  class watchdog_thread;
  std::shared_ptr<entry> m_entry;
};

}  // namespace isthmus
