#include "device/cuda/cuda_api.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/libraries.hpp"

namespace isthmus::gpu {

std::unique_ptr<gpu_api> load_cuda(std::string& reason) {
  auto api = std::make_unique<cuda_api>();
  if (!api->load(reason)) return nullptr;
  return api;
}

bool cuda_api::load(std::string& reason) {
  const dynamic_library library = dynamic_library::open(cuda_driver_library(), reason);
  if (!library) {
    reason = "no CUDA driver: " + reason;
    return false;
  }
  symbol_loader loader(library, "cu");
  loader.need(init, "Init");
  loader.need(get_version, "DriverGetVersion");
  loader.need(get_count, "DeviceGetCount");
  loader.need(get_name, "DeviceGetName");
  loader.need(get_bus_id, "DeviceGetPCIBusId");
  loader.need(can_access_peer, "DeviceCanAccessPeer");
  loader.need(get_memory_info, "MemGetInfo_v2");
  loader.need(get_pointer_attribute, "PointerGetAttribute");
  loader.need(allocate, "MemAlloc_v2");
  loader.need(free, "MemFree_v2");
  loader.need(allocate_host, "MemHostAlloc");
  loader.need(free_host, "MemFreeHost");
  loader.need(ipc_export, "IpcGetMemHandle");
  loader.need(ipc_open, "IpcOpenMemHandle_v2");
  loader.need(ipc_close, "IpcCloseMemHandle");
  loader.need(stream_create, "StreamCreateWithPriority");
  loader.need(stream_priorities, "CtxGetStreamPriorityRange");
  loader.need(stream_destroy, "StreamDestroy_v2");
  loader.need(stream_synchronize, "StreamSynchronize");
  loader.need(stream_is_capturing, "StreamIsCapturing");
  loader.need(stream_wait_event, "StreamWaitEvent");
  loader.need(event_create, "EventCreate");
  loader.need(event_destroy, "EventDestroy_v2");
  loader.need(event_record, "EventRecord");
  loader.need(event_query, "EventQuery");
  loader.want(event_elapsed, "EventElapsedTime");
  loader.need(fill, "MemsetD8Async");
  loader.need(write_word, "StreamWriteValue32_v2");
  loader.need(get_attribute, "DeviceGetAttribute");
  loader.need(error_string, "GetErrorString");
  loader.need(retain_context, "DevicePrimaryCtxRetain");
  loader.need(push_context, "CtxPushCurrent_v2");
  loader.need(pop_context, "CtxPopCurrent_v2");
  loader.need(enable_context, "CtxEnablePeerAccess");
  loader.need(copy_async, "MemcpyAsync");
  loader.need(wait_value, "StreamWaitValue32_v2");
  loader.need(module_load, "ModuleLoadData");
  loader.need(module_function, "ModuleGetFunction");
  loader.want(function_load, "FuncLoad");
  loader.need(exchange_capture_mode, "ThreadExchangeStreamCaptureMode");
  loader.need(launch, "LaunchKernel");
  loader.want(batch_words, "StreamBatchMemOp_v2");
  loader.want(copy_batch_v2, "MemcpyBatchAsync_v2");
  loader.want(copy_batch_v1, "MemcpyBatchAsync");
  load_virtual_memory(library);
  if (!loader.missing().empty()) {
    reason =
        fmt::format("{} has no {}; a driver of CUDA 12.0 or newer is needed", library.path(), loader.missing());
    return false;
  }
  return true;
}

void cuda_api::load_virtual_memory(const dynamic_library& library) {
  symbol_loader loader(library, "cuMem");
  loader.need(memory.create, "Create");
  loader.need(memory.release, "Release");
  loader.need(memory.reserve, "AddressReserve");
  loader.need(memory.unreserve, "AddressFree");
  loader.need(memory.map, "Map");
  loader.need(memory.unmap, "Unmap");
  loader.need(memory.set_access, "SetAccess");
  loader.need(memory.granularity, "GetAllocationGranularity");
  loader.need(memory.export_descriptor, "ExportToShareableHandle");
  loader.need(memory.import_descriptor, "ImportFromShareableHandle");
  if (!loader.missing().empty()) memory = {};
}

std::string cuda_api::text(int code) {
  const char* words = nullptr;
  return error_string(code, &words) == success && words != nullptr ? words : fmt::format("CUDA error {}", code);
}

std::string cuda_api::version_text(int version) {
  return fmt::format("CUDA driver {}.{}", version / 1000, version % 1000 / 10);
}

// The primary context is the one that the CUDA runtime uses, so that its users' streams and ours meet.
int cuda_api::context_of(int device, cuda_context* context) {
  if (device < 0 || device >= max_devices) return invalid_device;
  std::atomic<cuda_context>& known = m_contexts[static_cast<std::size_t>(device)];
  *context = known.load(std::memory_order_acquire);
  if (*context != nullptr) return success;
  const std::lock_guard lock(m_mutex);
  *context = known.load(std::memory_order_relaxed);
  if (*context != nullptr) return success;
  const int code = retain_context(context, device);
  if (code == success) known.store(*context, std::memory_order_release);
  return code;
}

int cuda_api::enter(int device, std::intptr_t*) {
  cuda_context context = nullptr;
  const int code = context_of(device, &context);
  return code == success ? push_context(context) : code;
}

void cuda_api::leave(std::intptr_t) {
  cuda_context own = nullptr;
  pop_context(&own);
}

int cuda_api::enable_peer(int peer) {
  cuda_context context = nullptr;
  const int code = context_of(peer, &context);
  return code == success ? enable_context(context, 0) : code;
}

bool cuda_api::has_virtual_memory(int device) {
  int maps = 0, exports = 0;
  return memory.create != nullptr && get_attribute(&maps, attribute_virtual_memory, device) == success &&
         get_attribute(&exports, attribute_file_descriptors, device) == success && maps != 0 && exports != 0;
}

int cuda_api::copy(const device_copy& one, native_stream stream) {
  return copy_async(one.to, const_cast<void*>(one.from), one.bytes, stream);
}

int cuda_api::copy_batch(std::span<void*> to, std::span<void*> from, std::span<std::size_t> bytes,
                         native_stream stream) {
  copy_attributes attributes{source_in_stream_order, {}, {}, prefer_overlap_with_compute};
  std::size_t first = 0, failed = 0;
  if (copy_batch_v2 != nullptr)
    return copy_batch_v2(to.data(), from.data(), bytes.data(), to.size(), &attributes, &first, 1, stream);
  return copy_batch_v1(to.data(), from.data(), bytes.data(), to.size(), &attributes, &first, 1, &failed,
                       stream);
}

int cuda_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return wait_value(stream, word, value, wait_until_reached);
}

int cuda_api::words(native_stream stream, std::span<const word_step> steps) {
  if (batch_words == nullptr) return not_supported;
  constexpr std::size_t most = 128;  // in one call; more go in several
  std::array<word_operation, most> batch{};
  for (std::size_t at = 0; at < steps.size(); at += most) {
    const auto part = steps.subspan(at, std::min(most, steps.size() - at));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const bool waits = part[i].action == word_action::wait_equal;
      batch[i] = {waits ? kind_wait_word : kind_write_word,
                  part[i].word,
                  part[i].value,
                  waits ? wait_until_equal : 0,
                  {}};
    }
    const int code = batch_words(stream, static_cast<unsigned>(part.size()), batch.data(), 0);
    if (code != success) return code;
  }
  return success;
}

int cuda_api::architecture(int device, std::string& name) {
  int major = 0, minor = 0;
  int code = get_attribute(&major, attribute_capability_major, device);
  if (code == success) code = get_attribute(&minor, attribute_capability_minor, device);
  name = fmt::format("sm_{}{}", major, minor);
  return code;
}

}  // namespace isthmus::gpu
