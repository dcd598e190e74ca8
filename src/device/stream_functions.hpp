// Functions for streams that device_driver lacks. GPU-aware MPI needs them.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <string>

#include "device/gpu/functions.hpp"

namespace isthmus {

// Precondition of the functions: the device is current, and load has returned "".
// Errors: they throw isthmus::error.
class stream_functions {
 public:
  // Returns "", or the reason why this machine lacks the functions.
  std::string load(isthmus_platform platform);

  // Returns true if the stream and the legacy default stream wait for each other.
  bool is_blocking(native_stream stream) const;
  // Returns true if later work of a stream may miss what a network adapter wrote to device memory before a wait,
  // unless the wait flushes. Always false with HIP.
  bool can_flush(int device) const;
  // As device_driver::wait_word, followed by the flush.
  void wait_word_and_flush(const std::uint32_t* word, std::uint32_t value, native_stream stream) const;

 private:
  gpu::gpu_functions m_native;
};

}  // namespace isthmus
