#include "device_runtime.hpp"

namespace isthmus::xccl {

std::string device_runtime::load(const dynamic_library& library, const std::string& prefix) {
  symbol_loader loader(library, prefix);
  loader.need(get_device_count, "GetDeviceCount");
  loader.need(get_device, "GetDevice");
  loader.need(set_device, "SetDevice");
  loader.need(device_get_pci_bus_id, "DeviceGetPCIBusId");
  loader.need(device_get_attribute, "DeviceGetAttribute");
  loader.need(device_synchronize, "DeviceSynchronize");
  loader.need(malloc, "Malloc");
  loader.need(free, "Free");
  loader.need(malloc_async, "MallocAsync");
  loader.need(free_async, "FreeAsync");
  loader.need(memcpy_async, "MemcpyAsync");
  loader.need(get_error_string, "GetErrorString");
  return loader.missing();
}

}  // namespace isthmus::xccl
