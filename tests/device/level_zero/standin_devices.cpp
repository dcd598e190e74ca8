// The stand-in's driver, devices and contexts, and the entry points for the loader.
#include <level_zero/ze_ddi.h>

#include <cstdio>

#include "standin.h"
#include "standin.hpp"

namespace standin {

standin_state& standin_state::instance() {
  static standin_state& only_instance = *new standin_state;
  return only_instance;
}

namespace {

template <typename Handle, typename Pick>
ze_result_t list(std::uint32_t* count, Handle* handles, std::uint32_t all, Pick assign) {
  if (*count == 0 || *count > all) *count = all;
  if (handles == nullptr) return ZE_RESULT_SUCCESS;
  for (std::uint32_t i = 0; i < *count; ++i) assign(handles[i], i);
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL init(ze_init_flags_t) { return ZE_RESULT_SUCCESS; }

ze_result_t ZE_APICALL driver_get(std::uint32_t* count, ze_driver_handle_t* drivers) {
  const counted_call call("zeDriverGet");
  return list(count, drivers, 1,
              [&](ze_driver_handle_t& driver, std::uint32_t) { driver = &call.state.driver; });
}

ze_result_t ZE_APICALL driver_version(ze_driver_handle_t, ze_api_version_t* version) {
  *version = ZE_API_VERSION_1_4;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL driver_properties(ze_driver_handle_t, ze_driver_properties_t* properties) {
  properties->driverVersion = 4711;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL driver_extensions(ze_driver_handle_t, std::uint32_t* count,
                                         ze_driver_extension_properties_t*) {
  *count = 0;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL device_get(ze_driver_handle_t, std::uint32_t* count, ze_device_handle_t* devices) {
  const counted_call call("zeDeviceGet");
  return list(count, devices, 3,
              [&](ze_device_handle_t& device, std::uint32_t i) { device = &call.state.devices[i]; });
}

ze_result_t ZE_APICALL device_properties(ze_device_handle_t device, ze_device_properties_t* properties) {
  const counted_call call("zeDeviceGetProperties");
  properties->type = device->type;
  properties->maxMemAllocSize = standin_max_block_bytes;
  std::snprintf(properties->name, sizeof properties->name, "stand-in %u", device->ordinal);
  return ZE_RESULT_SUCCESS;
}

// Group 0 supports compute and copy, group 1 is copy-only, as on Intel's discrete GPUs.
ze_result_t ZE_APICALL queue_groups(ze_device_handle_t, std::uint32_t* count,
                                    ze_command_queue_group_properties_t* groups) {
  const counted_call call("zeDeviceGetCommandQueueGroupProperties");
  return list(count, groups, 2, [](ze_command_queue_group_properties_t& group, std::uint32_t i) {
    group.flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
    if (i == 0) group.flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
    group.maxMemoryFillPatternSize = i == 0 ? 128 : 16;
    group.numQueues = 1;
  });
}

ze_result_t ZE_APICALL can_access_peer(ze_device_handle_t, ze_device_handle_t, ze_bool_t* answer) {
  const counted_call call("zeDeviceCanAccessPeer");
  *answer = call.state.peers ? 1 : 0;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL pci_properties(ze_device_handle_t device, ze_pci_ext_properties_t* properties) {
  const counted_call call("zeDevicePciGetPropertiesExt");
  properties->address = {0, 0x3a + device->ordinal, 0, 0};
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL context_create(ze_driver_handle_t, const ze_context_desc_t*,
                                      ze_context_handle_t* context) {
  const counted_call call("zeContextCreate");
  *context = new _ze_context_handle_t;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL context_destroy(ze_context_handle_t context) {
  const counted_call call("zeContextDestroy");
  delete context;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL make_resident(ze_context_handle_t, ze_device_handle_t, void*, std::size_t) {
  const counted_call call("zeContextMakeMemoryResident");
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace standin

// The loader calls these functions. The empty tables are in a generated file.
extern "C" {

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetGlobalProcAddrTable(ze_api_version_t, ze_global_dditable_t* table) {
  table->pfnInit = &standin::init;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetDriverProcAddrTable(ze_api_version_t, ze_driver_dditable_t* table) {
  *table = {};
  table->pfnGet = &standin::driver_get;
  table->pfnGetApiVersion = &standin::driver_version;
  table->pfnGetProperties = &standin::driver_properties;
  table->pfnGetExtensionProperties = &standin::driver_extensions;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetDeviceProcAddrTable(ze_api_version_t, ze_device_dditable_t* table) {
  *table = {};
  table->pfnGet = &standin::device_get;
  table->pfnGetProperties = &standin::device_properties;
  table->pfnGetCommandQueueGroupProperties = &standin::queue_groups;
  table->pfnCanAccessPeer = &standin::can_access_peer;
  table->pfnPciGetPropertiesExt = &standin::pci_properties;
  return ZE_RESULT_SUCCESS;
}

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetContextProcAddrTable(ze_api_version_t, ze_context_dditable_t* table) {
  *table = {};
  table->pfnCreate = &standin::context_create;
  table->pfnDestroy = &standin::context_destroy;
  table->pfnMakeMemoryResident = &standin::make_resident;
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
