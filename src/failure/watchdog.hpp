// Watchdog for streams and blocking calls. A stream that waits for a dead rank never finishes, and a call to a
// native library may not return; only another thread can end such waits. Each process has one watchdog thread
// for all watches. It runs while there are watches.
//
// This file does not depend on the rest of Isthmus, because libraries that use the core only through its C ABI
// also compile it. Each of them has its own watchdog thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace isthmus {

using watchdog_clock = std::chrono::steady_clock;

// The oldest operation that has started and has not completed.
struct watched_operation {
  std::uint64_t id = 0;  // different for each operation; 0: none
  // Start time. If empty, the time at which the watchdog first saw the operation.
  std::optional<watchdog_clock::time_point> start_time;
};

// Options of a watch: the operation to watch, and the reactions. The watchdog thread calls the functions, one
// at a time. They must return quickly, because the same thread checks all other watches. Functions marked as
// optional may be empty.
struct watch_options {
  std::chrono::duration<double> timeout{};
  std::chrono::milliseconds interval{100};  // maximum time between two checks
  std::function<watched_operation()> operation;
  // Called every `wait_interval` while the operation runs and has not reached the timeout. Optional.
  std::function<void(std::uint64_t id)> on_wait;
  std::chrono::milliseconds wait_interval{500};
  // Called at each check after the operation has run for `timeout`. Must return false if the same id has been
  // reused for a new operation in the meantime; the time then starts again.
  std::function<bool(std::uint64_t id)> on_stuck;
  // on_wait and on_stuck may take seconds, for example because a library ends its own kernels. They run in a
  // separate thread, one at a time, and the result of on_stuck is ignored.
  bool has_slow_actions = false;
  // Returns whether the communicator was aborted. In that case, the operation is no longer checked. Optional,
  // together with on_abort.
  std::function<bool()> aborted;
  // Releases waiting streams. Returns true if no work is left; otherwise it is called again at the next check.
  std::function<bool()> on_abort;
  // Called with the message of an exception that one of the functions threw, usually because the
  // device failed. Optional.
  std::function<void(const char* message)> on_error;
};

// Registers a watch for the lifetime of the object.
// Blocking: the destructor waits until none of the functions is running, so they must not destroy the watch.
// Thread safety: all functions may be called from any thread.
class watch {
 public:
  explicit watch(watch_options options);
  ~watch();
  watch(const watch&) = delete;
  watch& operator=(const watch&) = delete;

  // Requests a check without delay.
  void wake();

 private:
  class entry;
  class watchdog_thread;
  std::shared_ptr<entry> m_entry;
};

}  // namespace isthmus
