// Lets the calls of a blocking backend wait for the earlier work of their stream.
#pragma once

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>

#include "base/error.hpp"
#include "device/driver.hpp"
#include "device/owned.hpp"
#include "failure/wait.hpp"

namespace isthmus {

// The platforms whose streams the core can wait for.
constexpr bool has_native_streams(isthmus_platform platform) {
  return platform == ISTHMUS_PLATFORM_CUDA || platform == ISTHMUS_PLATFORM_HIP;
}

// The error of a wait that ends because the communicator was aborted.
inline error aborted_error(const char* location) {
  return make_error(ISTHMUS_ERROR_ABORTED, location, "the communicator was aborted",
                    "destroy it on every rank and create a new one");
}

// Errors: functions throw isthmus::error.
// Thread safety: one thread at a time. check may be called at any time from any thread.
class stream_gate {
 public:
  // `backend`: name for error messages.
  stream_gate(const isthmus_backend_context& context, device_driver& driver, const char* backend);

  // Errors: INVALID_USAGE for a captured stream, and for streams of platforms other than CUDA and HIP. Those
  //   are queues of a SYCL program, which the core cannot wait for.
  void check(isthmus_stream stream) const;
  // Blocking: waits for the work that is on the stream. Errors: those of check.
  void enter(isthmus_stream stream);
  // Blocking: waits for the event. There is no timeout, because earlier work of the application may take a long
  // time. Only an abort ends the wait early.
  void wait_for(native_event event) const;

 private:
  const isthmus_backend_context& m_context;
  device_driver& m_driver;
  const char* m_backend;
  owned_event m_entry_event;
};

inline stream_gate::stream_gate(const isthmus_backend_context& context, device_driver& driver,
                                const char* backend)
    : m_context(context), m_driver(driver), m_backend(backend), m_entry_event(driver, context.device.ordinal) {}

inline void stream_gate::wait_for(native_event event) const {
  constexpr int polls_per_check = 64, polls_before_sleep = 2000;
  int polls = 0;
  const auto is_done = [&] {
    if (m_driver.is_done(event)) return true;
    if (++polls % polls_per_check == 0 && m_context.is_aborted(m_context.runtime) != 0)
      throw aborted_error(ISTHMUS_HERE);
    if (polls >= polls_before_sleep) sleep_briefly(std::chrono::microseconds(5));
    return false;
  };
  poll_until_done(is_done, yielding);
}

inline void stream_gate::check(isthmus_stream stream) const {
  const isthmus_device device = m_context.device;
  if (!has_native_streams(device.platform)) {
    if (stream == nullptr) return;
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     fmt::format("{} cannot wait for a queue of platform {}", m_backend,
                                 isthmus_platform_name(device.platform)),
                     "wait for the queue and pass stream = NULL");
  }
  if (m_driver.is_capturing(device.ordinal, stream))
    throw make_error(
        ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
        fmt::format("{} cannot be captured into a graph: its calls wait for the stream", m_backend),
        "call it outside of a capture");
}

inline void stream_gate::enter(isthmus_stream stream) {
  check(stream);
  if (!has_native_streams(m_context.device.platform)) return;
  m_driver.record(m_context.device.ordinal, m_entry_event, stream);
  wait_for(m_entry_event);
}

}  // namespace isthmus
