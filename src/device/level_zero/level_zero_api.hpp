// Function table of the Level Zero loader (libze_loader.so.1), which is loaded at run time.
#pragma once

#include <level_zero/ze_api.h>

#include <memory>
#include <string>

namespace isthmus {

// Members have the native names without "ze".
struct level_zero_api {
  // Returns nullptr and sets `reason` if this machine has no loader. The loader's environment variables still
  // apply (ZE_ENABLE_VALIDATION_LAYER, ZE_ENABLE_ALT_DRIVERS, ...).
  static std::unique_ptr<level_zero_api> load(std::string& reason);

  // Throws an error if `result` is not success. `call` describes the native call.
  static void check(ze_result_t result, const char* location, const std::string& call);
  static const char* text(ze_result_t result);

  decltype(&zeInit) init;
  decltype(&zeDriverGet) driver_get;
  decltype(&zeDriverGetApiVersion) driver_get_api_version;
  decltype(&zeDriverGetProperties) driver_get_properties;
  decltype(&zeDeviceGet) device_get;
  decltype(&zeDeviceGetProperties) device_get_properties;
  decltype(&zeDeviceGetCommandQueueGroupProperties) device_get_command_queue_group_properties;
  decltype(&zeDeviceCanAccessPeer) device_can_access_peer;
  decltype(&zeDevicePciGetPropertiesExt) device_pci_get_properties_ext;  // null in old loaders
  decltype(&zeContextCreate) context_create;
  decltype(&zeContextMakeMemoryResident) context_make_memory_resident;

  decltype(&zeMemAllocDevice) mem_alloc_device;
  decltype(&zeMemAllocHost) mem_alloc_host;
  decltype(&zeMemFree) mem_free;
  decltype(&zeMemGetAllocProperties) mem_get_alloc_properties;
  decltype(&zeMemGetAddressRange) mem_get_address_range;
  decltype(&zeMemGetIpcHandle) mem_get_ipc_handle;
  // Null before Level Zero 1.6. Declared here because Debian's headers are older.
  ze_result_t (*mem_put_ipc_handle)(ze_context_handle_t context, ze_ipc_mem_handle_t handle);
  decltype(&zeMemOpenIpcHandle) mem_open_ipc_handle;
  decltype(&zeMemCloseIpcHandle) mem_close_ipc_handle;

  decltype(&zeCommandListCreateImmediate) command_list_create_immediate;
  decltype(&zeCommandListDestroy) command_list_destroy;
  decltype(&zeCommandListAppendBarrier) command_list_append_barrier;
  decltype(&zeCommandListAppendMemoryCopy) command_list_append_memory_copy;
  decltype(&zeCommandListAppendMemoryFill) command_list_append_memory_fill;
  decltype(&zeEventPoolCreate) event_pool_create;
  decltype(&zeEventPoolDestroy) event_pool_destroy;
  decltype(&zeEventCreate) event_create;
  decltype(&zeEventDestroy) event_destroy;
  decltype(&zeEventHostSynchronize) event_host_synchronize;
  decltype(&zeEventHostReset) event_host_reset;
  decltype(&zeEventQueryStatus) event_query_status;
};

}  // namespace isthmus
