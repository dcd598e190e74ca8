#include "device/hip/hip_api.hpp"

#include <fmt/format.h>

#include "device/libraries.hpp"

namespace isthmus::gpu {

std::unique_ptr<gpu_api> load_hip(std::string& reason) {
  auto api = std::make_unique<hip_api>();
  if (!api->load(reason)) return nullptr;
  return api;
}

bool hip_api::load(std::string& reason) {
  const dynamic_library library = dynamic_library::open(hip_library(), reason);
  if (!library) {
    reason = "no HIP runtime: " + reason;
    return false;
  }
  symbol_loader loader(library, "hip");
  loader.load_required(init, "Init");
  loader.load_required(get_version, "DriverGetVersion");
  loader.load_required(get_count, "GetDeviceCount");
  loader.load_required(get_name, "DeviceGetName");
  loader.load_required(get_bus_id, "DeviceGetPCIBusId");
  loader.load_required(can_access_peer, "DeviceCanAccessPeer");
  loader.load_required(get_memory_info, "MemGetInfo");
  loader.load_required(get_pointer_attribute, "PointerGetAttribute");
  loader.load_required(allocate, "Malloc");
  loader.load_required(free, "Free");
  loader.load_required(allocate_host, "HostMalloc");
  loader.load_required(free_host, "HostFree");
  loader.load_required(ipc_export, "IpcGetMemHandle");
  loader.load_required(ipc_open, "IpcOpenMemHandle");
  loader.load_required(ipc_close, "IpcCloseMemHandle");
  loader.load_required(stream_create, "StreamCreateWithPriority");
  loader.load_required(stream_priorities, "DeviceGetStreamPriorityRange");
  loader.load_required(stream_destroy, "StreamDestroy");
  loader.load_required(stream_synchronize, "StreamSynchronize");
  loader.load_required(stream_is_capturing, "StreamIsCapturing");
  loader.load_required(stream_wait_event, "StreamWaitEvent");
  loader.load_required(event_create, "EventCreateWithFlags");
  loader.load_required(event_destroy, "EventDestroy");
  loader.load_required(event_record, "EventRecord");
  loader.load_required(event_query, "EventQuery");
  loader.load_optional(event_elapsed, "EventElapsedTime");
  loader.load_required(fill, "MemsetD8Async");
  loader.load_required(write_word, "StreamWriteValue32");
  loader.load_required(module_load, "ModuleLoadData");
  loader.load_required(module_function, "ModuleGetFunction");
  loader.load_optional(exchange_capture_mode, "ThreadExchangeStreamCaptureMode");
  loader.load_required(launch, "ModuleLaunchKernel");
  loader.load_required(error_string, "GetErrorString");
  loader.load_required(last_error, "GetLastError");
  loader.load_required(get_device, "GetDevice");
  loader.load_required(set_device, "SetDevice");
  loader.load_required(runtime_version, "RuntimeGetVersion");
  loader.load_required(enable_device, "DeviceEnablePeerAccess");
  loader.load_required(allocate_with_flags, "ExtMallocWithFlags");
  loader.load_required(copy_async, "MemcpyAsync");
  loader.load_required(wait_value, "StreamWaitValue32");
  if (!loader.first_missing().empty()) {
    reason = fmt::format("{} lacks {}; install ROCm 5.2 or newer", library.path(), loader.first_missing());
    return false;
  }
  // hipMemoryTypeDevice was renumbered in ROCm 6.
  int version = 0;
  if (runtime_version(&version) == success && version < 60000000) m_device_memory_type = 1;
  return true;
}

std::string hip_api::version_text(int version) {
  return fmt::format("HIP {}.{}", version / 10000000, version / 100000 % 100);
}

int hip_api::enter(int device, std::intptr_t* previous) {
  int current = 0;
  const int code = get_device(&current);
  *previous = current;
  return code == success ? set_device(device) : code;
}

// The runtime keeps the last error until it is queried. The application must not see this error.
int hip_api::enable_peer(int peer) {
  const int code = enable_device(peer, 0);
  if (code == peer_already_enabled) (void)last_error();
  return code;
}

// Writes to coarse-grained memory become visible to other devices only when a kernel ends. Flags and scratch
// need fine-grained memory.
int hip_api::allocate_coherent(void** pointer, std::size_t bytes) {
  return allocate_with_flags(pointer, bytes, hip_fine_grained);
}

int hip_api::copy(const device_copy& item, native_stream stream) {
  return copy_async(item.destination, item.source, item.bytes, hip_copy_default, stream);
}

int hip_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return wait_value(stream, word, value, wait_until_reached, full_mask);
}

int hip_api::enqueue_words(native_stream stream, std::span<const word_step> steps) {
  int code = success;
  for (auto step = steps.begin(); step != steps.end() && code == success; ++step)
    code = step->action == word_action::wait_equal
               ? wait_value(stream, step->word, step->value, wait_until_equal, full_mask)
               : write_word(stream, step->word, step->value, 0);
  return code;
}

}  // namespace isthmus::gpu
