// What a rank needs whose buffers are on a device: UCX moves them, this orders it behind the caller's stream
// and makes the copies within the device.
#pragma once

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/owned.hpp"
#include "device/stream_gate.hpp"

namespace isthmus::ucx {

// Functions throw isthmus::error. Not thread-safe.
class device_access {
 public:
  // nullptr on the host; otherwise nullptr and `reason` where this machine has no driver.
  static std::unique_ptr<device_access> make(const isthmus_backend_context& context, std::string& reason);
  device_access(const isthmus_backend_context& context, device_driver& driver);

  // UCX's number and name for memory of this platform's devices.
  int memory_type() const;
  const char* memory_name() const;
  // And for what the pointer points to: host memory is pinned, or was never the device's.
  int memory_type_of(const void* pointer) const;

  void enter(isthmus_stream stream) { m_gate.enter(stream); }
  // There when it returns. Either side may be host memory.
  void copy(void* to, const void* from, std::uint64_t bytes);
  owned_memory allocate(std::uint64_t bytes) { return {m_driver, m_device.ordinal, bytes}; }
  // With the device current: UCX works in the context of the thread that calls it.
  void on_device(const std::function<void()>& work) { m_driver.with_device(m_device.ordinal, work); }

 private:
  isthmus_device m_device;
  device_driver& m_driver;
  stream_gate m_gate;
  owned_stream m_stream;
  owned_event m_copied;
};

}  // namespace isthmus::ucx
