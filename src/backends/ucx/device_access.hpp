// Access to the device of a rank: orders calls after the caller's stream, and copies within the device. UCX
// transfers the data between ranks.
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

// Errors: functions throw isthmus::error.
// Thread safety: one thread at a time.
class device_access {
 public:
  // Returns null on the host platform. Returns null and sets `reason` if the device driver is missing.
  static std::unique_ptr<device_access> make(const isthmus_backend_context& context, std::string& reason);
  device_access(const isthmus_backend_context& context, device_driver& driver);

  // UCX's number and name of this platform's device memory.
  int memory_type() const;
  const char* memory_name() const;
  // Returns the memory type of a pointer. Host memory, pinned or not, is host_memory.
  int memory_type_of(const void* pointer) const;

  void enter(isthmus_stream stream) { m_gate.enter(stream); }
  // Blocking. Source and destination may be host memory.
  void copy(void* destination, const void* source, std::uint64_t bytes);
  owned_memory allocate(std::uint64_t bytes) { return {m_driver, m_device.ordinal, bytes}; }
  // Runs `work` with the device current, because UCX uses the device context of the calling thread.
  void on_device(const std::function<void()>& work) { m_driver.run_on_device(m_device.ordinal, work); }

 private:
  isthmus_device m_device;
  device_driver& m_driver;
  stream_gate m_gate;
  owned_stream m_stream;
  owned_event m_copied;
};

}  // namespace isthmus::ucx
