// The stand-in's memory. Blocks are mapped files, so that handles work across processes.
#include <level_zero/ze_ddi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "standin.h"
#include "standin.hpp"

namespace standin {

block* standin_state::find(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto next_block = blocks.upper_bound(address);
  if (next_block == blocks.begin()) return nullptr;
  const auto candidate = std::prev(next_block);
  return address - candidate->first < candidate->second.bytes ? &candidate->second : nullptr;
}

namespace {

// The contents of a handle. The first int is a descriptor, as in Intel's driver.
struct handle_content {
  int descriptor;
  std::uint32_t magic;
  std::uint64_t bytes;
};
constexpr std::uint32_t handle_magic = 0x57414e44;

bool has_relaxed_limits(const void* next) {
  if (next == nullptr) return false;
  const auto* limits = static_cast<const ze_relaxed_allocation_limits_exp_desc_t*>(next);
  return limits->stype == ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC &&
         (limits->flags & ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE) != 0;
}

ze_result_t map(standin_state& state, ze_memory_type_t type, ze_context_handle_t context,
                ze_device_handle_t device, std::uint64_t bytes, int descriptor, bool imported, void** pointer) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  state.blocks[reinterpret_cast<std::uintptr_t>(address)] = {type,  device,     context,
                                                             bytes, descriptor, imported};
  *pointer = address;
  return ZE_RESULT_SUCCESS;
}

ze_result_t allocate_block(standin_state& state, ze_memory_type_t type, ze_context_handle_t context,
                           ze_device_handle_t device, std::uint64_t bytes, void** pointer) {
  const int descriptor = memfd_create("standin", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0)
    return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  const ze_result_t result = map(state, type, context, device, bytes, descriptor, false, pointer);
  // New memory has undefined contents.
  if (result == ZE_RESULT_SUCCESS) std::memset(*pointer, 0xa5, bytes);
  return result;
}

// A block must be released in the context that it was allocated or imported in, with the matching function.
ze_result_t release(standin_state& state, ze_context_handle_t context, void* pointer, bool imported) {
  const auto entry = state.blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (entry == state.blocks.end() || entry->second.context != context || entry->second.imported != imported)
    return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  if (entry->second.device != nullptr && !imported) entry->second.device->used_bytes -= entry->second.bytes;
  munmap(pointer, entry->second.bytes);
  close(entry->second.descriptor);
  state.blocks.erase(entry);
  return ZE_RESULT_SUCCESS;
}

}  // namespace

extern "C" ze_result_t ZE_APICALL zeMemAllocDevice(ze_context_handle_t context,
                                                   const ze_device_mem_alloc_desc_t* description,
                                                   std::size_t bytes, std::size_t alignment,
                                                   ze_device_handle_t device, void** pointer) {
  const counted_call call(__func__);
  if (alignment > 4096) return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
  if (bytes > standin_max_block_bytes && !has_relaxed_limits(description->pNext))
    return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
  if (bytes > standin_memory_bytes - device->used_bytes) return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  const ze_result_t result = allocate_block(call.state, ZE_MEMORY_TYPE_DEVICE, context, device, bytes, pointer);
  if (result == ZE_RESULT_SUCCESS) device->used_bytes += bytes;
  return result;
}

extern "C" ze_result_t ZE_APICALL zeMemAllocHost(ze_context_handle_t context, const ze_host_mem_alloc_desc_t*,
                                                 std::size_t bytes, std::size_t, void** pointer) {
  const counted_call call(__func__);
  return allocate_block(call.state, ZE_MEMORY_TYPE_HOST, context, nullptr, bytes, pointer);
}

extern "C" ze_result_t ZE_APICALL zeMemFree(ze_context_handle_t context, void* pointer) {
  const counted_call call(__func__);
  return release(call.state, context, pointer, false);
}

extern "C" ze_result_t ZE_APICALL zeMemGetAllocProperties(ze_context_handle_t context, const void* pointer,
                                                          ze_memory_allocation_properties_t* properties,
                                                          ze_device_handle_t* device) {
  const counted_call call(__func__);
  const block* entry = call.state.find(pointer);
  const bool is_known = entry != nullptr && entry->context == context;
  properties->type = is_known ? entry->type : ZE_MEMORY_TYPE_UNKNOWN;
  properties->pageSize = 65536;
  if (device != nullptr) *device = is_known ? entry->device : nullptr;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeMemGetAddressRange(ze_context_handle_t, const void* pointer, void** begin,
                                                       std::size_t* bytes) {
  const counted_call call(__func__);
  const block* entry = call.state.find(pointer);
  if (entry == nullptr) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  for (const auto& [address, each] : call.state.blocks) {
    if (&each == entry && begin != nullptr) *begin = reinterpret_cast<void*>(address);
  }
  if (bytes != nullptr) *bytes = entry->bytes;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeMemGetIpcHandle(ze_context_handle_t, const void* pointer,
                                                    ze_ipc_mem_handle_t* handle) {
  const counted_call call(__func__);
  const auto entry = call.state.blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (entry == call.state.blocks.end()) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  const handle_content content{entry->second.descriptor, handle_magic, entry->second.bytes};
  std::memcpy(handle->data, &content, sizeof content);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeMemOpenIpcHandle(ze_context_handle_t context, ze_device_handle_t device,
                                                     ze_ipc_mem_handle_t handle, ze_ipc_memory_flags_t,
                                                     void** pointer) {
  const counted_call call(__func__);
  handle_content content{};
  std::memcpy(&content, handle.data, sizeof content);
  const int own = content.magic == handle_magic ? dup(content.descriptor) : -1;
  if (own < 0) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  return map(call.state, ZE_MEMORY_TYPE_DEVICE, context, device, content.bytes, own, true, pointer);
}

extern "C" ze_result_t ZE_APICALL zeMemCloseIpcHandle(ze_context_handle_t context, const void* pointer) {
  const counted_call call(__func__);
  return release(call.state, context, const_cast<void*>(pointer), true);
}

void add_memory(ze_mem_dditable_t& table) {
  table.pfnAllocDevice = &zeMemAllocDevice;
  table.pfnAllocHost = &zeMemAllocHost;
  table.pfnFree = &zeMemFree;
  table.pfnGetAllocProperties = &zeMemGetAllocProperties;
  table.pfnGetAddressRange = &zeMemGetAddressRange;
  table.pfnGetIpcHandle = &zeMemGetIpcHandle;
  table.pfnOpenIpcHandle = &zeMemOpenIpcHandle;
  table.pfnCloseIpcHandle = &zeMemCloseIpcHandle;
}

}  // namespace standin
