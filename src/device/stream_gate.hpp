// Lets the calls of a blocking backend wait for the earlier work of their stream.
#pragma once

#include <isthmus/backend.h>

#include "device/driver.hpp"
#include "device/owned.hpp"

namespace isthmus {

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

}  // namespace isthmus
