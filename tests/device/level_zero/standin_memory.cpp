// The stand-in's memory: files that are mapped, so that handles work across processes.
#include <level_zero/ze_ddi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "standin.h"
#include "standin.hpp"

namespace standin {

block* world::find(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  const auto candidate = std::prev(after);
  return address - candidate->first < candidate->second.bytes ? &candidate->second : nullptr;
}

namespace {

// What a handle holds: the first int is a descriptor, as in Intel's driver.
struct handle_content {
  int descriptor;
  std::uint32_t mark;
  std::uint64_t bytes;
};
constexpr std::uint32_t handle_mark = 0x57414e44;

bool relaxed(const void* next) {
  if (next == nullptr) return false;
  const auto* limits = static_cast<const ze_relaxed_allocation_limits_exp_desc_t*>(next);
  return limits->stype == ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC &&
         (limits->flags & ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE) != 0;
}

ze_result_t map(world& all, ze_memory_type_t type, ze_context_handle_t context, ze_device_handle_t device,
                std::uint64_t bytes, int descriptor, bool imported, void** pointer) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  all.blocks[reinterpret_cast<std::uintptr_t>(address)] = {type, device, context, bytes, descriptor, imported};
  *pointer = address;
  return ZE_RESULT_SUCCESS;
}

ze_result_t make(world& all, ze_memory_type_t type, ze_context_handle_t context, ze_device_handle_t device,
                 std::uint64_t bytes, void** pointer) {
  const int descriptor = memfd_create("standin", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0)
    return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  const ze_result_t result = map(all, type, context, device, bytes, descriptor, false, pointer);
  // Fresh memory holds anything.
  if (result == ZE_RESULT_SUCCESS) std::memset(*pointer, 0xa5, bytes);
  return result;
}

ze_result_t ZE_APICALL alloc_device(ze_context_handle_t context, const ze_device_mem_alloc_desc_t* description,
                                    std::size_t bytes, std::size_t alignment, ze_device_handle_t device,
                                    void** pointer) {
  const call here("zeMemAllocDevice");
  if (alignment > 4096) return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
  if (bytes > standin_max_block_bytes && !relaxed(description->pNext)) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
  if (bytes > standin_memory_bytes - device->used_bytes) return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  const ze_result_t result = make(here.all, ZE_MEMORY_TYPE_DEVICE, context, device, bytes, pointer);
  if (result == ZE_RESULT_SUCCESS) device->used_bytes += bytes;
  return result;
}

ze_result_t ZE_APICALL alloc_host(ze_context_handle_t context, const ze_host_mem_alloc_desc_t*,
                                  std::size_t bytes, std::size_t, void** pointer) {
  const call here("zeMemAllocHost");
  return make(here.all, ZE_MEMORY_TYPE_HOST, context, nullptr, bytes, pointer);
}

// A block is released in the context and by the call that it came from.
ze_result_t release(world& all, ze_context_handle_t context, void* pointer, bool imported) {
  const auto found = all.blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == all.blocks.end() || found->second.context != context || found->second.imported != imported)
    return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  if (found->second.device != nullptr && !imported) found->second.device->used_bytes -= found->second.bytes;
  munmap(pointer, found->second.bytes);
  close(found->second.descriptor);
  all.blocks.erase(found);
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL free_block(ze_context_handle_t context, void* pointer) {
  const call here("zeMemFree");
  return release(here.all, context, pointer, false);
}

ze_result_t ZE_APICALL properties_of(ze_context_handle_t context, const void* pointer,
                                     ze_memory_allocation_properties_t* properties,
                                     ze_device_handle_t* device) {
  const call here("zeMemGetAllocProperties");
  const block* found = here.all.find(pointer);
  const bool known = found != nullptr && found->context == context;
  properties->type = known ? found->type : ZE_MEMORY_TYPE_UNKNOWN;
  properties->pageSize = 65536;
  if (device != nullptr) *device = known ? found->device : nullptr;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL address_range(ze_context_handle_t, const void* pointer, void** begin,
                                     std::size_t* bytes) {
  const call here("zeMemGetAddressRange");
  const block* found = here.all.find(pointer);
  if (found == nullptr) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  for (const auto& [address, each] : here.all.blocks) {
    if (&each == found && begin != nullptr) *begin = reinterpret_cast<void*>(address);
  }
  if (bytes != nullptr) *bytes = found->bytes;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL get_ipc_handle(ze_context_handle_t, const void* pointer, ze_ipc_mem_handle_t* handle) {
  const call here("zeMemGetIpcHandle");
  const auto found = here.all.blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == here.all.blocks.end()) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  const handle_content content{found->second.descriptor, handle_mark, found->second.bytes};
  std::memcpy(handle->data, &content, sizeof content);
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL open_ipc_handle(ze_context_handle_t context, ze_device_handle_t device,
                                       ze_ipc_mem_handle_t handle, ze_ipc_memory_flags_t, void** pointer) {
  const call here("zeMemOpenIpcHandle");
  handle_content content{};
  std::memcpy(&content, handle.data, sizeof content);
  const int own = content.mark == handle_mark ? dup(content.descriptor) : -1;
  if (own < 0) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  return map(here.all, ZE_MEMORY_TYPE_DEVICE, context, device, content.bytes, own, true, pointer);
}

ze_result_t ZE_APICALL close_ipc_handle(ze_context_handle_t context, const void* pointer) {
  const call here("zeMemCloseIpcHandle");
  return release(here.all, context, const_cast<void*>(pointer), true);
}

}  // namespace

void add_memory(ze_mem_dditable_t& table) {
  table.pfnAllocDevice = &alloc_device;
  table.pfnAllocHost = &alloc_host;
  table.pfnFree = &free_block;
  table.pfnGetAllocProperties = &properties_of;
  table.pfnGetAddressRange = &address_range;
  table.pfnGetIpcHandle = &get_ipc_handle;
  table.pfnOpenIpcHandle = &open_ipc_handle;
  table.pfnCloseIpcHandle = &close_ipc_handle;
}

}  // namespace standin
