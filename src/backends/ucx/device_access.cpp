#include "backends/ucx/device_access.hpp"

#include "backends/ucx/ucp_api.hpp"

namespace isthmus::ucx {

std::unique_ptr<device_access> device_access::make(const isthmus_backend_context& context,
                                                   std::string& reason) {
  if (context.device.platform == ISTHMUS_PLATFORM_HOST) return nullptr;
  device_driver* const driver = device_driver::get(context.device.platform, reason);
  return driver == nullptr ? nullptr : std::make_unique<device_access>(context, *driver);
}

device_access::device_access(const isthmus_backend_context& context, device_driver& driver)
    : m_device(context.device),
      m_driver(driver),
      m_gate(context, driver, "ucx"),
      m_stream(driver, m_device.ordinal),
      m_copied(driver, m_device.ordinal) {}

int device_access::memory_type() const {
  return m_device.platform == ISTHMUS_PLATFORM_HIP ? rocm_memory : cuda_memory;
}

const char* device_access::memory_name() const {
  return m_device.platform == ISTHMUS_PLATFORM_HIP ? "rocm" : "cuda";
}

int device_access::memory_type_of(const void* pointer) const {
  return m_driver.owner_of(pointer) < 0 ? host_memory : memory_type();
}

void device_access::copy(void* destination, const void* source, std::uint64_t bytes) {
  if (bytes == 0) return;
  const device_copy copies[] = {{destination, source, bytes}};
  m_driver.copy_each(m_device.ordinal, copies, m_stream);
  m_driver.record(m_device.ordinal, m_copied, m_stream);
  m_gate.wait_for(m_copied);
}

}  // namespace isthmus::ucx
