#include "device_runtime.hpp"

namespace isthmus::xccl {

std::string device_runtime::load(const dynamic_library& library, const std::string& prefix) {
  std::string missing;
  const auto need = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(prefix + name));
    if (function == nullptr && missing.empty()) missing = prefix + name;
  };
  need(get_device_count, "GetDeviceCount");
  need(get_device, "GetDevice");
  need(set_device, "SetDevice");
  need(device_get_pci_bus_id, "DeviceGetPCIBusId");
  need(device_get_attribute, "DeviceGetAttribute");
  need(device_synchronize, "DeviceSynchronize");
  need(malloc, "Malloc");
  need(free, "Free");
  need(malloc_async, "MallocAsync");
  need(free_async, "FreeAsync");
  need(memcpy_async, "MemcpyAsync");
  need(get_error_string, "GetErrorString");
  return missing;
}

}  // namespace isthmus::xccl
