// Functions that DPC++'s Level Zero adapter requires and Isthmus does not use. The adapter contains the static loader,
// which looks up each function by name in libze_loader.so.1. The stand-in takes the place of that library.
#include <level_zero/loader/ze_loader.h>

#include <cstdio>
#include <cstring>
#include <string_view>

#include "newer.hpp"
#include "standin.hpp"

namespace standin {

// ---- the loader: these calls do not reach a driver -----------------------------------------------------------

extern "C" ze_result_t ZE_APICALL zeLoaderInit() { return ZE_RESULT_SUCCESS; }
extern "C" ZE_DLLEXPORT void* zeLoaderGetTracingHandle() { return nullptr; }

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zelLoaderGetVersionsInternal(std::size_t* count,
                                                                            zel_component_version_t* versions) {
  if (versions != nullptr && *count > 0) {
    *versions = {"loader", version_1_14, {1, 24, 0}};
  }
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zelLoaderTranslateHandleInternal(zel_handle_type_t, void* handle,
                                                                                void** native) {
  *native = handle;
  return ZE_RESULT_SUCCESS;
}

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zelGetTracerApiProcAddrTable(ze_api_version_t, void*) {
  return ZE_RESULT_SUCCESS;
}

// ---- drivers and devices -------------------------------------------------------------------------------------

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zeInitDrivers(std::uint32_t* count, ze_driver_handle_t* drivers,
                                                             const void*) {
  return zeDriverGet(count, drivers);
}

extern "C" ze_result_t ZE_APICALL zeDriverGetExtensionFunctionAddress(ze_driver_handle_t, const char* name,
                                                                      void** address);

extern "C" ze_result_t ZE_APICALL zeDeviceGetSubDevices(ze_device_handle_t, std::uint32_t* count,
                                                        ze_device_handle_t*) {
  const counted_call call(__func__);
  *count = 0;
  return ZE_RESULT_SUCCESS;
}

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zeDeviceGetRootDevice(ze_device_handle_t,
                                                                     ze_device_handle_t* root) {
  const counted_call call(__func__);
  *root = nullptr;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetP2PProperties(ze_device_handle_t, ze_device_handle_t,
                                                           ze_device_p2p_properties_t* properties) {
  const counted_call call(__func__);
  properties->flags = call.state.peers ? ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS : 0;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetComputeProperties(ze_device_handle_t,
                                                               ze_device_compute_properties_t* properties) {
  const counted_call call(__func__);
  properties->maxTotalGroupSize = properties->maxGroupSizeX = properties->maxGroupSizeY =
      properties->maxGroupSizeZ = 1024;
  properties->maxGroupCountX = properties->maxGroupCountY = properties->maxGroupCountZ = UINT32_MAX;
  properties->maxSharedLocalMemory = 128 << 10;
  properties->numSubGroupSizes = 2;
  properties->subGroupSizes[0] = 16;
  properties->subGroupSizes[1] = 32;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetModuleProperties(ze_device_handle_t,
                                                              ze_device_module_properties_t* properties) {
  const counted_call call(__func__);
  properties->spirvVersionSupported = ZE_MAKE_VERSION(1, 4);
  properties->flags = ZE_DEVICE_MODULE_FLAG_FP16 | ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS;
  properties->maxArgumentsSize = 2048;
  properties->printfBufferSize = 4 << 20;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetMemoryProperties(ze_device_handle_t, std::uint32_t* count,
                                                              ze_device_memory_properties_t* properties) {
  const counted_call call(__func__);
  *count = 1;
  if (properties == nullptr) return ZE_RESULT_SUCCESS;
  properties->maxClockRate = 2375;
  properties->maxBusWidth = 192;
  properties->totalSize = standin_memory_bytes;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL
zeDeviceGetMemoryAccessProperties(ze_device_handle_t, ze_device_memory_access_properties_t* properties) {
  const counted_call call(__func__);
  properties->hostAllocCapabilities = properties->deviceAllocCapabilities =
      properties->sharedSingleDeviceAllocCapabilities = ZE_MEMORY_ACCESS_CAP_FLAG_RW;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetCacheProperties(ze_device_handle_t, std::uint32_t* count,
                                                             ze_device_cache_properties_t* properties) {
  const counted_call call(__func__);
  *count = 1;
  if (properties != nullptr) properties->cacheSize = 18 << 20;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetImageProperties(ze_device_handle_t,
                                                             ze_device_image_properties_t*) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetGlobalTimestamps(ze_device_handle_t, std::uint64_t* host,
                                                              std::uint64_t* device) {
  const counted_call call(__func__);
  *host = *device = 1;
  return ZE_RESULT_SUCCESS;
}

// ---- memory and commands -------------------------------------------------------------------------------------

extern "C" ze_result_t ZE_APICALL zeMemAllocShared(ze_context_handle_t context,
                                                   const ze_device_mem_alloc_desc_t*,
                                                   const ze_host_mem_alloc_desc_t* description,
                                                   std::size_t bytes, std::size_t alignment, ze_device_handle_t,
                                                   void** pointer) {
  return zeMemAllocHost(context, description, bytes, alignment, pointer);
}

extern "C" ze_result_t ZE_APICALL zeMemFreeExt(ze_context_handle_t context, const ze_memory_free_ext_desc_t*,
                                               void* pointer) {
  return zeMemFree(context, pointer);
}

extern "C" ze_result_t ZE_APICALL zeMemPutIpcHandle(ze_context_handle_t, ze_ipc_mem_handle_t) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeContextEvictMemory(ze_context_handle_t, ze_device_handle_t, void*,
                                                       std::size_t) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zeCommandListHostSynchronize(ze_command_list_handle_t list,
                                                                            std::uint64_t) {
  const counted_call call(__func__);
  call.state.progress();
  return list->pending.empty() ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendSignalEvent(ze_command_list_handle_t list,
                                                                 ze_event_handle_t event) {
  const counted_call call(__func__);
  return call.state.append(list, true, {}, event, 0, nullptr);
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendWaitOnEvents(ze_command_list_handle_t list,
                                                                  std::uint32_t waits,
                                                                  ze_event_handle_t* events) {
  const counted_call call(__func__);
  return call.state.append(list, true, {}, nullptr, waits, events);
}

// An extension of Intel's driver.
ze_result_t ZE_APICALL counter_based_event_create(ze_context_handle_t, ze_device_handle_t, const void*,
                                                  ze_event_handle_t* event) {
  const counted_call call("zexCounterBasedEventCreate2");
  *event = new _ze_event_handle_t{true};
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDriverGetExtensionFunctionAddress(ze_driver_handle_t, const char* name,
                                                                      void** address) {
  const counted_call call(__func__);
  if (std::string_view(name) != "zexCounterBasedEventCreate2") return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  *address = reinterpret_cast<void*>(&counter_based_event_create);
  return ZE_RESULT_SUCCESS;
}

}  // namespace standin
