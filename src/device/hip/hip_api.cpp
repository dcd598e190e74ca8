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
  loader.need(init, "Init");
  loader.need(get_version, "DriverGetVersion");
  loader.need(get_count, "GetDeviceCount");
  loader.need(get_name, "DeviceGetName");
  loader.need(get_bus_id, "DeviceGetPCIBusId");
  loader.need(can_access_peer, "DeviceCanAccessPeer");
  loader.need(get_memory_info, "MemGetInfo");
  loader.need(get_pointer_attribute, "PointerGetAttribute");
  loader.need(allocate, "Malloc");
  loader.need(free, "Free");
  loader.need(allocate_host, "HostMalloc");
  loader.need(free_host, "HostFree");
  loader.need(ipc_export, "IpcGetMemHandle");
  loader.need(ipc_open, "IpcOpenMemHandle");
  loader.need(ipc_close, "IpcCloseMemHandle");
  loader.need(stream_create, "StreamCreateWithPriority");
  loader.need(stream_priorities, "DeviceGetStreamPriorityRange");
  loader.need(stream_destroy, "StreamDestroy");
  loader.need(stream_synchronize, "StreamSynchronize");
  loader.need(stream_is_capturing, "StreamIsCapturing");
  loader.need(stream_wait_event, "StreamWaitEvent");
  loader.need(event_create, "EventCreateWithFlags");
  loader.need(event_destroy, "EventDestroy");
  loader.need(event_record, "EventRecord");
  loader.need(event_query, "EventQuery");
  loader.want(event_elapsed, "EventElapsedTime");
  loader.need(fill, "MemsetD8Async");
  loader.need(write_word, "StreamWriteValue32");
  loader.need(module_load, "ModuleLoadData");
  loader.need(module_function, "ModuleGetFunction");
  loader.want(exchange_capture_mode, "ThreadExchangeStreamCaptureMode");
  loader.need(launch, "ModuleLaunchKernel");
  loader.need(error_string, "GetErrorString");
  loader.need(last_error, "GetLastError");
  loader.need(get_device, "GetDevice");
  loader.need(set_device, "SetDevice");
  loader.need(runtime_version, "RuntimeGetVersion");
  loader.need(enable_device, "DeviceEnablePeerAccess");
  loader.need(allocate_with_flags, "ExtMallocWithFlags");
  loader.need(copy_async, "MemcpyAsync");
  loader.need(wait_value, "StreamWaitValue32");
  if (!loader.missing().empty()) {
    reason = fmt::format("{} has no {}; ROCm 5.2 or newer is needed", library.path(), loader.missing());
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

int hip_api::enter(int device, std::intptr_t* before) {
  int current = 0;
  const int code = get_device(&current);
  *before = current;
  return code == success ? set_device(device) : code;
}

// An error of the runtime stays until somebody asks for the last one: not this one.
int hip_api::enable_peer(int peer) {
  const int code = enable_device(peer, 0);
  if (code == peer_already_enabled) (void)last_error();
  return code;
}

// Other devices see writes to coarse-grained memory only when a kernel ends; flags and scratch need more.
int hip_api::allocate_coherent(void** pointer, std::size_t bytes) {
  return allocate_with_flags(pointer, bytes, hip_fine_grained);
}

int hip_api::copy(const device_copy& one, native_stream stream) {
  return copy_async(one.to, one.from, one.bytes, hip_copy_default, stream);
}

int hip_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return wait_value(stream, word, value, wait_until_reached, whole_word);
}

int hip_api::words(native_stream stream, std::span<const word_step> steps) {
  int code = success;
  for (auto step = steps.begin(); step != steps.end() && code == success; ++step)
    code = step->action == word_action::wait_equal
               ? wait_value(stream, step->word, step->value, wait_until_equal, whole_word)
               : write_word(stream, step->word, step->value, 0);
  return code;
}

}  // namespace isthmus::gpu
