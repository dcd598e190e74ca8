// Where a blocking backend's call waits for what its stream has before it.
#pragma once

#include <isthmus/backend.h>

#include "device/driver.hpp"
#include "device/owned.hpp"

namespace isthmus {

// Functions throw isthmus::error. Not thread-safe.
class stream_gate {
 public:
  // `backend`: who says so in errors.
  stream_gate(const isthmus_backend_context& context, device_driver& driver, const char* backend);

  // INVALID_USAGE for a stream that is captured, and for one that isn't CUDA's or HIP's: elsewhere streams are
  // a SYCL program's queues, which the core can't wait for.
  void enter(isthmus_stream stream);
  // Only abort ends this early: what is before the event in the stream is the program's own, and may be long.
  void wait_for(native_event event) const;

 private:
  const isthmus_backend_context& m_context;
  device_driver& m_driver;
  const char* m_backend;
  owned_event m_entry_event;
};

}  // namespace isthmus
