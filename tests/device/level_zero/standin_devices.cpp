// The stand-in's driver, devices and contexts, and the entry points for the loader.
#include <level_zero/ze_ddi.h>

#include <cstdio>
#include <cstdlib>

#include "newer.hpp"
#include "standin.h"
#include "standin.hpp"

namespace standin {

standin_state& standin_state::instance() {
  static standin_state& only_instance = *new standin_state;
  return only_instance;
}

std::vector<_ze_device_handle_t> standin_state::create_devices() {
  const char* gpus = std::getenv("STANDIN_GPUS");
  std::vector<_ze_device_handle_t> devices = {{ZE_DEVICE_TYPE_VPU, 0}};
  for (int i = 1; i <= (gpus != nullptr ? std::atoi(gpus) : 2); ++i)
    devices.push_back({ZE_DEVICE_TYPE_GPU, static_cast<std::uint32_t>(i)});
  return devices;
}

namespace {

template <typename Handle, typename Pick>
ze_result_t list(std::uint32_t* count, Handle* handles, std::uint32_t all, Pick assign) {
  if (*count == 0 || *count > all) *count = all;
  if (handles == nullptr) return ZE_RESULT_SUCCESS;
  for (std::uint32_t i = 0; i < *count; ++i) assign(handles[i], i);
  return ZE_RESULT_SUCCESS;
}

}  // namespace

extern "C" ze_result_t ZE_APICALL zeInit(ze_init_flags_t flags) {
  const counted_call call(__func__);
  if (flags == ZE_INIT_FLAG_GPU_ONLY)
    std::erase_if(call.state.devices,
                  [](const _ze_device_handle_t& device) { return device.type != ZE_DEVICE_TYPE_GPU; });
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDriverGet(std::uint32_t* count, ze_driver_handle_t* drivers) {
  const counted_call call(__func__);
  return list(count, drivers, 1,
              [&](ze_driver_handle_t& driver, std::uint32_t) { driver = &call.state.driver; });
}

extern "C" ze_result_t ZE_APICALL zeDriverGetApiVersion(ze_driver_handle_t, ze_api_version_t* version) {
  *version = version_1_14;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDriverGetProperties(ze_driver_handle_t,
                                                        ze_driver_properties_t* properties) {
  properties->driverVersion = 1u << 24 | 14u << 16 | 37000u;  // 1.14.37000
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDriverGetExtensionProperties(ze_driver_handle_t, std::uint32_t* count,
                                                                 ze_driver_extension_properties_t* extensions) {
  if (extensions != nullptr)
    extensions[0] = {"ZE_experimental_event_pool_counter_based", ZE_MAKE_VERSION(1, 0)};
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDeviceGet(ze_driver_handle_t, std::uint32_t* count,
                                              ze_device_handle_t* devices) {
  const counted_call call(__func__);
  return list(count, devices, static_cast<std::uint32_t>(call.state.devices.size()),
              [&](ze_device_handle_t& device, std::uint32_t i) { device = &call.state.devices[i]; });
}

extern "C" ze_result_t ZE_APICALL zeDeviceGetProperties(ze_device_handle_t device,
                                                        ze_device_properties_t* properties) {
  const counted_call call(__func__);
  properties->type = device->type;
  properties->vendorId = 0x8086;
  properties->deviceId = 0xe20b;  // Arc B580
  properties->uuid.id[0] = static_cast<std::uint8_t>(device->ordinal);
  properties->coreClockRate = 2850;
  properties->maxMemAllocSize = standin_max_block_bytes;
  properties->maxHardwareContexts = 64;
  properties->numThreadsPerEU = 8;
  properties->physicalEUSimdWidth = 16;
  properties->numEUsPerSubslice = 8;
  properties->numSubslicesPerSlice = 4;
  properties->numSlices = 5;
  properties->timerResolution = 52;
  properties->timestampValidBits = properties->kernelTimestampValidBits = 64;
  for (auto* next = static_cast<ze_base_properties_t*>(properties->pNext); next != nullptr;
       next = static_cast<ze_base_properties_t*>(next->pNext))
    if (next->stype == ip_version_type) reinterpret_cast<ip_version*>(next)->version = 0x05004000;
  std::snprintf(properties->name, sizeof properties->name, "stand-in %u", device->ordinal);
  return ZE_RESULT_SUCCESS;
}

// Group 0 supports compute and copy, group 1 is copy-only, as on Intel's discrete GPUs.
extern "C" ze_result_t ZE_APICALL zeDeviceGetCommandQueueGroupProperties(
    ze_device_handle_t, std::uint32_t* count, ze_command_queue_group_properties_t* groups) {
  const counted_call call(__func__);
  return list(count, groups, 2, [](ze_command_queue_group_properties_t& group, std::uint32_t i) {
    group.flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
    if (i == 0) group.flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
    group.maxMemoryFillPatternSize = i == 0 ? 128 : 16;
    group.numQueues = 1;
  });
}

extern "C" ze_result_t ZE_APICALL zeDeviceCanAccessPeer(ze_device_handle_t, ze_device_handle_t,
                                                        ze_bool_t* answer) {
  const counted_call call(__func__);
  *answer = call.state.peers ? 1 : 0;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeDevicePciGetPropertiesExt(ze_device_handle_t device,
                                                              ze_pci_ext_properties_t* properties) {
  const counted_call call(__func__);
  properties->address = {0, 0x3a + device->ordinal, 0, 0};
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeContextCreate(ze_driver_handle_t, const ze_context_desc_t*,
                                                  ze_context_handle_t* context) {
  const counted_call call(__func__);
  *context = new _ze_context_handle_t;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeContextDestroy(ze_context_handle_t context) {
  const counted_call call(__func__);
  delete context;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeContextMakeMemoryResident(ze_context_handle_t, ze_device_handle_t, void*,
                                                              std::size_t) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

}  // namespace standin

// The loader calls these functions. The empty tables are in a generated file.
extern "C" {

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetGlobalProcAddrTable(ze_api_version_t, ze_global_dditable_t* table) {
  table->pfnInit = &zeInit;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetDriverProcAddrTable(ze_api_version_t, ze_driver_dditable_t* table) {
  *table = {};
  table->pfnGet = &zeDriverGet;
  table->pfnGetApiVersion = &zeDriverGetApiVersion;
  table->pfnGetProperties = &zeDriverGetProperties;
  table->pfnGetExtensionProperties = &zeDriverGetExtensionProperties;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetDeviceProcAddrTable(ze_api_version_t, ze_device_dditable_t* table) {
  *table = {};
  table->pfnGet = &zeDeviceGet;
  table->pfnGetProperties = &zeDeviceGetProperties;
  table->pfnGetCommandQueueGroupProperties = &zeDeviceGetCommandQueueGroupProperties;
  table->pfnCanAccessPeer = &zeDeviceCanAccessPeer;
  table->pfnPciGetPropertiesExt = &zeDevicePciGetPropertiesExt;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetContextProcAddrTable(ze_api_version_t, ze_context_dditable_t* table) {
  *table = {};
  table->pfnCreate = &zeContextCreate;
  table->pfnDestroy = &zeContextDestroy;
  table->pfnMakeMemoryResident = &zeContextMakeMemoryResident;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetMemProcAddrTable(ze_api_version_t, ze_mem_dditable_t* table) {
  *table = {};
  standin::add_memory(*table);
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetCommandListProcAddrTable(ze_api_version_t,
                                                                  ze_command_list_dditable_t* table) {
  *table = {};
  standin::add_lists(*table);
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetEventPoolProcAddrTable(ze_api_version_t,
                                                                ze_event_pool_dditable_t* table) {
  *table = {};
  standin::add_events(*table);
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetEventProcAddrTable(ze_api_version_t, ze_event_dditable_t* table) {
  *table = {};
  standin::add_events(*table);
  return ZE_RESULT_SUCCESS;
}

// ---- functions for tests ----------------------------------------------------------------------------------

ZE_DLLEXPORT uint64_t standin_calls(const char* name) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  return state.calls[name];
}

ZE_DLLEXPORT uint64_t standin_all_calls(void) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  uint64_t sum = 0;
  for (const auto& [name, calls] : state.calls)
    if (name.starts_with("ze")) sum += calls;
  return sum;
}

ZE_DLLEXPORT void standin_define_kernel(const char* name, const size_t* argument_bytes, size_t arguments,
                                        standin_kernel_body* run) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  state.kernels[name] = {{argument_bytes, argument_bytes + arguments}, run};
}

ZE_DLLEXPORT void standin_set_peers(int reach) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  state.peers = reach != 0;
}

ZE_DLLEXPORT void standin_hold(int hold) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  state.hold = hold != 0;
  state.progress();
}

ZE_DLLEXPORT int standin_live(void) {
  standin::standin_state& state = standin::standin_state::instance();
  const std::lock_guard lock(state.mutex);
  return static_cast<int>(state.blocks.size() + state.lists.size()) + state.event_pools;
}

}  // extern "C"
