#include "device/level_zero/level_zero_api.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

void look_up(symbol_loader& loader, level_zero_api& api) {
  loader.load_required(api.init, "Init");
  loader.load_required(api.driver_get, "DriverGet");
  loader.load_required(api.driver_get_api_version, "DriverGetApiVersion");
  loader.load_required(api.driver_get_properties, "DriverGetProperties");
  loader.load_required(api.device_get, "DeviceGet");
  loader.load_required(api.device_get_properties, "DeviceGetProperties");
  loader.load_required(api.device_get_command_queue_group_properties, "DeviceGetCommandQueueGroupProperties");
  loader.load_required(api.device_can_access_peer, "DeviceCanAccessPeer");
  loader.load_optional(api.device_pci_get_properties_ext, "DevicePciGetPropertiesExt");
  loader.load_required(api.context_create, "ContextCreate");
  loader.load_required(api.context_make_memory_resident, "ContextMakeMemoryResident");
  loader.load_required(api.mem_alloc_device, "MemAllocDevice");
  loader.load_required(api.mem_alloc_host, "MemAllocHost");
  loader.load_required(api.mem_free, "MemFree");
  loader.load_required(api.mem_get_alloc_properties, "MemGetAllocProperties");
  loader.load_required(api.mem_get_address_range, "MemGetAddressRange");
  loader.load_required(api.mem_get_ipc_handle, "MemGetIpcHandle");
  loader.load_optional(api.mem_put_ipc_handle, "MemPutIpcHandle");
  loader.load_required(api.mem_open_ipc_handle, "MemOpenIpcHandle");
  loader.load_required(api.mem_close_ipc_handle, "MemCloseIpcHandle");
  loader.load_required(api.command_list_create_immediate, "CommandListCreateImmediate");
  loader.load_required(api.command_list_destroy, "CommandListDestroy");
  loader.load_required(api.command_list_append_barrier, "CommandListAppendBarrier");
  loader.load_required(api.command_list_append_memory_copy, "CommandListAppendMemoryCopy");
  loader.load_required(api.command_list_append_memory_fill, "CommandListAppendMemoryFill");
  loader.load_required(api.event_pool_create, "EventPoolCreate");
  loader.load_required(api.event_pool_destroy, "EventPoolDestroy");
  loader.load_required(api.event_create, "EventCreate");
  loader.load_required(api.event_destroy, "EventDestroy");
  loader.load_required(api.event_host_synchronize, "EventHostSynchronize");
  loader.load_required(api.event_host_reset, "EventHostReset");
  loader.load_required(api.event_query_status, "EventQueryStatus");
}

isthmus_status to_status(ze_result_t result) {
  switch (result) {
    case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY:
    case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: return ISTHMUS_ERROR_OUT_OF_MEMORY;
    case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE: return ISTHMUS_ERROR_UNSUPPORTED;
    default: return ISTHMUS_ERROR_BACKEND;  // the native code is more specific
  }
}

}  // namespace

std::unique_ptr<level_zero_api> level_zero_api::load(std::string& reason) {
  const library_search_request request{.variable = "ISTHMUS_LEVEL_ZERO_LIBRARY",
                                       .names = {"libze_loader.so.1"},
                                       .wheel_folders = {"../.."},
                                       .system_folders = {}};
  const dynamic_library library = dynamic_library::open(request, reason);
  if (!library) {
    reason = "the Level Zero loader could not be loaded: " + reason;
    return nullptr;
  }
  auto api = std::make_unique<level_zero_api>();
  symbol_loader loader(library, "ze");
  look_up(loader, *api);
  if (loader.first_missing().empty()) return api;
  reason = library.path() + " lacks " + loader.first_missing() + "; install Level Zero 1.0 or newer";
  return nullptr;
}

void level_zero_api::check(ze_result_t result, const char* location, const std::string& call) {
  if (result == ZE_RESULT_SUCCESS) return;
  throw make_error(to_status(result), location, fmt::format("{} failed: {}", call, text(result)), "",
                   static_cast<std::int64_t>(result));
}

// Names only the codes that memory, copy and event functions can return. error_info::native_code
// contains the others.
const char* level_zero_api::text(ze_result_t result) {
  switch (result) {
    case ZE_RESULT_SUCCESS: return "success";
    case ZE_RESULT_NOT_READY: return "not ready";
    case ZE_RESULT_ERROR_DEVICE_LOST: return "device lost";
    case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY: return "out of host memory";
    case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: return "out of device memory";
    case ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS: return "insufficient permissions";
    case ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE: return "dependency unavailable";
    case ZE_RESULT_ERROR_UNINITIALIZED: return "no driver";
    case ZE_RESULT_ERROR_UNSUPPORTED_VERSION: return "unsupported version";
    case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE: return "unsupported feature";
    case ZE_RESULT_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case ZE_RESULT_ERROR_INVALID_NULL_HANDLE: return "null handle";
    case ZE_RESULT_ERROR_INVALID_NULL_POINTER: return "null pointer";
    case ZE_RESULT_ERROR_INVALID_SIZE: return "invalid size";
    case ZE_RESULT_ERROR_UNSUPPORTED_SIZE: return "unsupported size";
    case ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT: return "unsupported alignment";
    case ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT: return "invalid synchronization object";
    case ZE_RESULT_ERROR_INVALID_ENUMERATION: return "invalid enumeration";
    case ZE_RESULT_ERROR_OVERLAPPING_REGIONS: return "overlapping regions";
    default: return "error";
  }
}

}  // namespace isthmus
