// The stand-in with the function names of the CUDA driver; only those that Isthmus uses.
#include <atomic>
#include <cstring>

#include "device.hpp"
#include "device_memory.hpp"
#include "driver.hpp"
#include "machine.hpp"
#include "standin.h"

namespace {

using standin::call;
using standin::device_memory;
using standin::machine;

struct location {
  int type, id;
};
struct properties {
  int type, handle_types;
  location target;
};
struct access_description {
  location target;
  int flags;
};

struct word_operation {
  int kind;
  std::uint32_t* word;
  std::uint64_t value;
  unsigned flags;
  std::uint64_t for_the_driver[2];
};

// A context is its device's ordinal, encoded as a pointer; NULL is none.
void* context_of(int device) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(device) + 1); }
int device_of(void* context) { return static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1; }

constexpr std::size_t granule = 2u << 20;
std::atomic<int> capability[2] = {9, 0};

}  // namespace

extern "C" {
void standin_set_capability(int major, int minor) { capability[0] = major, capability[1] = minor; }
STANDIN_API int cuInit(unsigned) {
  return call(__func__, [] { return machine::get().device_count > 0 ? standin::success : standin::no_device; });
}
STANDIN_API int cuDriverGetVersion(int* version) { return *version = 13000, standin::success; }
STANDIN_API int cuDeviceGetCount(int* count) { return standin::get_device_count(count); }
STANDIN_API int cuDeviceGetName(char* text, int capacity, int device) {
  return standin::device_name(text, capacity, device);
}
STANDIN_API int cuDeviceGetPCIBusId(char* text, int capacity, int device) {
  return standin::bus_id(text, capacity, device);
}
STANDIN_API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return call(__func__, [=] { return standin::can_access_peer(can, device, peer); });
}
STANDIN_API int cuDeviceGetAttribute(int* value, int attribute, int) {
  const bool descriptors = attribute == 102 || attribute == 103;
  const bool flushes = attribute == 98;
  if (attribute == 75 || attribute == 76) return *value = capability[attribute - 75], standin::success;
  *value = flushes || (descriptors && device_memory::get().has_descriptors()) ? 1 : 0;
  return standin::success;
}
STANDIN_API int cuGetErrorString(int code, const char** text) {
  return *text = standin::error_text(code), standin::success;
}
STANDIN_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  return call(__func__, [=] {
    if (device < 0 || device >= machine::get().device_count) return standin::invalid_device;
    *context = context_of(device);
    return standin::success;
  });
}
STANDIN_API int cuCtxPushCurrent_v2(void* context) { return standin::push_device(device_of(context)); }
STANDIN_API int cuCtxPopCurrent_v2(void** context) {
  int device = 0;
  const int code = standin::pop_device(&device);
  *context = context_of(device);
  return code;
}
STANDIN_API int cuCtxEnablePeerAccess(void* peer, unsigned) {
  return call(__func__, [=] { return device_memory::get().enable_peer(machine::current(), device_of(peer)); });
}
STANDIN_API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return standin::success;
}

STANDIN_API int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return standin::memory_info(free, total);
}
STANDIN_API int cuPointerGetAttribute(void* value, int attribute, void* pointer) {
  return standin::pointer_attribute(value, attribute, pointer);
}
STANDIN_API int cuMemAlloc_v2(void** pointer, std::size_t bytes) {
  return call(__func__, [=] { return standin::allocate(pointer, bytes); });
}
STANDIN_API int cuMemFree_v2(void* pointer) { return standin::call_release(__func__, pointer); }
STANDIN_API int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return call(__func__, [=] { return standin::allocate_host(pointer, bytes); });
}
STANDIN_API int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
  return call(__func__, [=] { return device_memory::get().register_host(pointer, bytes); });
}
STANDIN_API int cuMemHostUnregister(void* pointer) {
  return call(__func__, [=] { return device_memory::get().unregister_host(pointer); });
}
STANDIN_API int cuMemHostGetDevicePointer_v2(void** device_pointer, void* pointer, unsigned) {
  return *device_pointer = pointer, standin::success;
}
STANDIN_API int cuMemFreeHost(void* pointer) { return standin::call_release(__func__, pointer); }
STANDIN_API int cuIpcGetMemHandle(standin::ipc_handle* handle, void* pointer) {
  return call(__func__, [=] { return standin::ipc_get(handle, pointer); });
}
STANDIN_API int cuIpcOpenMemHandle_v2(void** pointer, standin::ipc_handle handle, unsigned) {
  return call(__func__, [=] { return standin::ipc_open(pointer, handle); });
}
STANDIN_API int cuIpcCloseMemHandle(void* pointer) {
  return call(__func__, [=] { return device_memory::get().free(pointer); });
}

STANDIN_API int cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  return *bytes = granule, standin::success;
}
STANDIN_API int cuMemCreate(std::uint64_t* handle, std::size_t bytes, const properties* props,
                            unsigned long long) {
  return call(__func__, [=] {
    if (bytes == 0 || bytes % granule != 0 || props->type != 1 || props->target.type != 1 ||
        props->handle_types != 1)
      return static_cast<int>(standin::invalid_value);
    return device_memory::get().create(handle, bytes, props->target.id);
  });
}
STANDIN_API int cuMemRelease(std::uint64_t handle) {
  return call(__func__, [=] { return device_memory::get().release(handle); });
}
STANDIN_API int cuMemExportToShareableHandle(void* file, std::uint64_t handle, int, unsigned long long) {
  return call(__func__, [=] { return device_memory::get().export_file(static_cast<int*>(file), handle); });
}
STANDIN_API int cuMemImportFromShareableHandle(std::uint64_t* handle, void* file, int) {
  return call(__func__, [=] {
    return device_memory::get().import_file(handle, static_cast<int>(reinterpret_cast<std::intptr_t>(file)));
  });
}
STANDIN_API int cuMemAddressReserve(void** address, std::size_t bytes, std::size_t, void*, unsigned long long) {
  return call(__func__, [=] {
    return bytes % granule == 0 ? device_memory::get().reserve(address, bytes) : standin::invalid_value;
  });
}
STANDIN_API int cuMemAddressFree(void* address, std::size_t bytes) {
  return call(__func__, [=] { return device_memory::get().unreserve(address, bytes); });
}
STANDIN_API int cuMemMap(void* address, std::size_t bytes, std::size_t, std::uint64_t handle,
                         unsigned long long) {
  return call(__func__, [=] { return device_memory::get().map(address, bytes, handle); });
}
STANDIN_API int cuMemUnmap(void* address, std::size_t bytes) {
  return call(__func__, [=] { return device_memory::get().unmap(address, bytes); });
}
STANDIN_API int cuMemSetAccess(void* address, std::size_t bytes, const access_description* access,
                               std::size_t count) {
  return call(__func__, [=] {
    for (std::size_t i = 0; i < count; ++i) {
      const int code =
          device_memory::get().set_access(address, bytes, access[i].target.id, access[i].flags == 3);
      if (code != standin::success) return code;
    }
    return static_cast<int>(standin::success);
  });
}

STANDIN_API int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  return call(__func__, [=] { return standin::stream_create(stream, flags); });
}
STANDIN_API int cuStreamGetFlags(void* stream, unsigned* flags) {
  return standin::stream_get_flags(stream, flags);
}
STANDIN_API int cuStreamDestroy_v2(void* stream) { return standin::stream_destroy(stream); }
STANDIN_API int cuStreamSynchronize(void* stream) { return standin::stream_synchronize(stream); }
STANDIN_API int cuStreamIsCapturing(void* stream, int* status) {
  return standin::stream_is_capturing(stream, status);
}
// Tests use one capture at a time.
STANDIN_API int cuStreamGetCaptureInfo(void* stream, int* status, std::uint64_t* id) {
  *id = 1;
  return standin::stream_is_capturing(stream, status);
}
STANDIN_API int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  return call(__func__, [=] { return standin::stream_wait_event(stream, event); });
}
STANDIN_API int cuEventCreate(void** event, unsigned) {
  return call(__func__, [=] { return standin::event_create(event); });
}
STANDIN_API int cuEventDestroy_v2(void* event) { return standin::event_destroy(event); }
STANDIN_API int cuEventRecord(void* event, void* stream) {
  return call(__func__, [=] { return standin::event_record(event, stream); });
}
STANDIN_API int cuEventQuery(void* event) { return standin::event_query(event); }
STANDIN_API int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  return standin::event_elapsed(milliseconds, begin, end);
}

STANDIN_API int cuMemsetD8Async(void* pointer, unsigned char value, std::size_t bytes, void* stream) {
  return call(__func__, [=] { return standin::fill(pointer, value, bytes, stream); });
}
STANDIN_API int cuMemcpyAsync(void* to, void* from, std::size_t bytes, void* stream) {
  return call(__func__, [=] { return standin::copy_async(to, from, bytes, 4, stream); });
}
STANDIN_API int cuMemcpyBatchAsync_v2(void** to, void** from, std::size_t* bytes, std::size_t count,
                                      const void* attributes, const std::size_t* first, std::size_t kinds,
                                      void* stream) {
  return call(__func__, [=] {
    if (attributes == nullptr || kinds != 1 || *first != 0) return static_cast<int>(standin::invalid_value);
    return standin::copy_batch(to, from, bytes, count, stream);
  });
}
STANDIN_API int cuStreamWriteValue32_v2(void* stream, void* word, std::uint32_t value, unsigned) {
  return call(__func__, [=] { return standin::write_word(stream, word, value); });
}
STANDIN_API int cuStreamWaitValue32_v2(void* stream, void* word, std::uint32_t value, unsigned flags) {
  return call(__func__, [=] {
    const bool is_supported = (flags & ~(1u << 30)) == 0;  // waits for >=, optionally with a flush
    return is_supported ? standin::wait_word(stream, word, value) : static_cast<int>(standin::not_supported);
  });
}
STANDIN_API int cuStreamBatchMemOp_v2(void* stream, unsigned count, const word_operation* operations,
                                      unsigned) {
  return call(__func__, [=] {
    std::vector<standin::word_step> steps;
    for (unsigned i = 0; i < count; ++i) {
      const bool waits = operations[i].kind == 1;  // 2 writes
      if (operations[i].kind > 2 || operations[i].flags != (waits ? 1u : 0u))
        return static_cast<int>(standin::not_supported);
      steps.push_back({waits, operations[i].word, static_cast<std::uint32_t>(operations[i].value)});
    }
    return standin::words(stream, steps);
  });
}
STANDIN_API int cuThreadExchangeStreamCaptureMode(int* mode) { return standin::exchange_capture_mode(mode); }
STANDIN_API int cuModuleLoadData(void** module, const void* code) {
  return call(__func__, [=] { return standin::load_module(module, code); });
}
STANDIN_API int cuModuleGetFunction(void** kernel, void* module, const char* name) {
  return call(__func__, [=] { return standin::find_kernel(kernel, module, name); });
}
STANDIN_API int cuLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                               unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                               void** arguments, void** extra) {
  return call(__func__, [=] {
    return standin::launch_kernel(kernel, {x, y, z}, {threads_x, threads_y, threads_z}, shared, stream,
                                  arguments, extra);
  });
}
}
