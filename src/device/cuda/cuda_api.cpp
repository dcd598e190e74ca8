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
  loader.load_required(init, "Init");
  loader.load_required(get_version, "DriverGetVersion");
  loader.load_required(get_count, "DeviceGetCount");
  loader.load_required(get_name, "DeviceGetName");
  loader.load_required(get_bus_id, "DeviceGetPCIBusId");
  loader.load_required(can_access_peer, "DeviceCanAccessPeer");
  loader.load_required(get_memory_info, "MemGetInfo_v2");
  loader.load_required(get_pointer_attribute, "PointerGetAttribute");
  loader.load_required(allocate, "MemAlloc_v2");
  loader.load_required(free, "MemFree_v2");
  loader.load_required(allocate_host, "MemHostAlloc");
  loader.load_required(free_host, "MemFreeHost");
  loader.load_required(ipc_export, "IpcGetMemHandle");
  loader.load_required(ipc_open, "IpcOpenMemHandle_v2");
  loader.load_required(ipc_close, "IpcCloseMemHandle");
  loader.load_required(stream_create, "StreamCreateWithPriority");
  loader.load_required(stream_priorities, "CtxGetStreamPriorityRange");
  loader.load_required(stream_destroy, "StreamDestroy_v2");
  loader.load_required(stream_synchronize, "StreamSynchronize");
  loader.load_required(stream_is_capturing, "StreamIsCapturing");
  loader.load_required(stream_wait_event, "StreamWaitEvent");
  loader.load_required(event_create, "EventCreate");
  loader.load_required(event_destroy, "EventDestroy_v2");
  loader.load_required(event_record, "EventRecord");
  loader.load_required(event_query, "EventQuery");
  loader.load_optional(event_elapsed, "EventElapsedTime");
  loader.load_required(fill, "MemsetD8Async");
  loader.load_required(write_word, "StreamWriteValue32_v2");
  loader.load_required(get_attribute, "DeviceGetAttribute");
  loader.load_required(error_string, "GetErrorString");
  loader.load_required(retain_context, "DevicePrimaryCtxRetain");
  loader.load_required(push_context, "CtxPushCurrent_v2");
  loader.load_required(pop_context, "CtxPopCurrent_v2");
  loader.load_required(enable_context, "CtxEnablePeerAccess");
  loader.load_required(copy_async, "MemcpyAsync");
  loader.load_required(wait_value, "StreamWaitValue32_v2");
  loader.load_required(module_load, "ModuleLoadData");
  loader.load_required(module_function, "ModuleGetFunction");
  loader.load_optional(function_load, "FuncLoad");
  loader.load_required(exchange_capture_mode, "ThreadExchangeStreamCaptureMode");
  loader.load_required(launch, "LaunchKernel");
  loader.load_optional(batch_words, "StreamBatchMemOp_v2");
  loader.load_optional(copy_batch_v2, "MemcpyBatchAsync_v2");
  loader.load_optional(copy_batch_v1, "MemcpyBatchAsync");
  load_virtual_memory(library);
  if (!loader.first_missing().empty()) {
    reason = fmt::format("{} lacks {}; install a driver for CUDA 12.0 or newer", library.path(),
                         loader.first_missing());
    return false;
  }
  return true;
}

void cuda_api::load_virtual_memory(const dynamic_library& library) {
  symbol_loader loader(library, "cuMem");
  loader.load_required(memory.create, "Create");
  loader.load_required(memory.release, "Release");
  loader.load_required(memory.reserve, "AddressReserve");
  loader.load_required(memory.unreserve, "AddressFree");
  loader.load_required(memory.map, "Map");
  loader.load_required(memory.unmap, "Unmap");
  loader.load_required(memory.set_access, "SetAccess");
  loader.load_required(memory.granularity, "GetAllocationGranularity");
  loader.load_required(memory.export_descriptor, "ExportToShareableHandle");
  loader.load_required(memory.import_descriptor, "ImportFromShareableHandle");
  if (!loader.first_missing().empty()) memory = {};
}

std::string cuda_api::text(int code) {
  const char* words = nullptr;
  return error_string(code, &words) == success && words != nullptr ? words : fmt::format("CUDA error {}", code);
}

std::string cuda_api::version_text(int version) {
  return fmt::format("CUDA driver {}.{}", version / 1000, version % 1000 / 10);
}

// The primary context is the one that the CUDA runtime uses, so the application's streams and memory are
// valid in it.
int cuda_api::primary_context(int device, cuda_context* context) {
  if (device < 0 || device >= max_devices) return invalid_device;
  std::atomic<cuda_context>& cached = m_contexts[static_cast<std::size_t>(device)];
  *context = cached.load(std::memory_order_acquire);
  if (*context != nullptr) return success;
  const std::lock_guard lock(m_mutex);
  *context = cached.load(std::memory_order_relaxed);
  if (*context != nullptr) return success;
  const int code = retain_context(context, device);
  if (code == success) cached.store(*context, std::memory_order_release);
  return code;
}

int cuda_api::enter(int device, std::intptr_t*) {
  cuda_context context = nullptr;
  const int code = primary_context(device, &context);
  return code == success ? push_context(context) : code;
}

void cuda_api::leave(std::intptr_t) {
  cuda_context own = nullptr;
  pop_context(&own);
}

int cuda_api::enable_peer(int peer) {
  cuda_context context = nullptr;
  const int code = primary_context(peer, &context);
  return code == success ? enable_context(context, 0) : code;
}

bool cuda_api::has_virtual_memory(int device) {
  int can_map = 0, can_export = 0;
  return memory.create != nullptr && get_attribute(&can_map, attribute_virtual_memory, device) == success &&
         get_attribute(&can_export, attribute_file_descriptors, device) == success && can_map != 0 &&
         can_export != 0;
}

int cuda_api::copy(const device_copy& item, native_stream stream) {
  return copy_async(item.destination, const_cast<void*>(item.source), item.bytes, stream);
}

int cuda_api::copy_batch(std::span<void*> destination, std::span<void*> source, std::span<std::size_t> bytes,
                         native_stream stream) {
  copy_attributes attributes{source_in_stream_order, {}, {}, prefer_overlap_with_compute};
  std::size_t first = 0, failed = 0;
  if (copy_batch_v2 != nullptr)
    return copy_batch_v2(destination.data(), source.data(), bytes.data(), destination.size(), &attributes,
                         &first, 1, stream);
  return copy_batch_v1(destination.data(), source.data(), bytes.data(), destination.size(), &attributes, &first,
                       1, &failed, stream);
}

int cuda_api::wait_word(native_stream stream, void* word, std::uint32_t value) {
  return wait_value(stream, word, value, wait_until_reached);
}

int cuda_api::enqueue_words(native_stream stream, std::span<const word_step> steps) {
  if (batch_words == nullptr) return not_supported;
  constexpr std::size_t max_operations = 128;  // per driver call
  std::array<word_operation, max_operations> batch{};
  for (std::size_t offset = 0; offset < steps.size(); offset += max_operations) {
    const auto operations = steps.subspan(offset, std::min(max_operations, steps.size() - offset));
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const bool is_wait = operations[i].action == word_action::wait_equal;
      batch[i] = {is_wait ? kind_wait_word : kind_write_word,
                  operations[i].word,
                  operations[i].value,
                  is_wait ? wait_until_equal : 0,
                  {}};
    }
    const int code = batch_words(stream, static_cast<unsigned>(operations.size()), batch.data(), 0);
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
