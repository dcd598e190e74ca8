// The stand-in with the functions that HIP has in addition to its runtime (device_names.cpp.in); only those
// that Isthmus uses. There are no descriptors and no batches.
#include "device.hpp"
#include "device_memory.hpp"
#include "driver.hpp"
#include "machine.hpp"
#include "standin.h"

using standin::call;
using standin::device_memory;
using standin::machine;

extern "C" {
STANDIN_API int hipInit(unsigned) {
  return call(__func__, [] { return machine::get().device_count > 0 ? standin::success : standin::no_device; });
}
STANDIN_API int hipDriverGetVersion(int* version) { return *version = 60400000, standin::success; }
STANDIN_API int hipRuntimeGetVersion(int* version) { return *version = 60400000, standin::success; }
STANDIN_API int hipGetLastError() { return standin::success; }
STANDIN_API int hipDeviceGetName(char* text, int capacity, int device) {
  return standin::device_name(text, capacity, device);
}
STANDIN_API int hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return call(__func__, [=] { return standin::can_access_peer(can, device, peer); });
}
STANDIN_API int hipDeviceEnablePeerAccess(int peer, unsigned) {
  return call(__func__, [=] { return device_memory::get().enable_peer(machine::current(), peer); });
}
STANDIN_API int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 1;
  *greatest = -1;
  return standin::success;
}
STANDIN_API int hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return standin::memory_info(free, total);
}
STANDIN_API int hipPointerGetAttribute(void* value, int attribute, void* pointer) {
  return standin::pointer_attribute(value, attribute, pointer);
}
STANDIN_API int hipExtMallocWithFlags(void** pointer, std::size_t bytes, unsigned) {
  return call(__func__, [=] { return standin::allocate(pointer, bytes); });
}
STANDIN_API int hipIpcGetMemHandle(standin::ipc_handle* handle, void* pointer) {
  return call(__func__, [=] { return standin::ipc_get(handle, pointer); });
}
STANDIN_API int hipIpcOpenMemHandle(void** pointer, standin::ipc_handle handle, unsigned) {
  return call(__func__, [=] { return standin::ipc_open(pointer, handle); });
}
STANDIN_API int hipIpcCloseMemHandle(void* pointer) {
  return call(__func__, [=] { return device_memory::get().free(pointer); });
}
STANDIN_API int hipStreamCreateWithPriority(void** stream, unsigned flags, int) {
  return call(__func__, [=] { return standin::stream_create(stream, flags); });
}
STANDIN_API int hipStreamIsCapturing(void* stream, int* status) {
  return standin::stream_is_capturing(stream, status);
}
STANDIN_API int hipMemsetD8Async(void* pointer, unsigned char value, std::size_t bytes, void* stream) {
  return call(__func__, [=] { return standin::fill(pointer, value, bytes, stream); });
}
STANDIN_API int hipStreamWriteValue32(void* stream, void* word, std::uint32_t value, unsigned) {
  return call(__func__, [=] { return standin::write_word(stream, word, value); });
}
STANDIN_API int hipStreamWaitValue32(void* stream, void* word, std::uint32_t value, unsigned flags,
                                     std::uint32_t) {
  return call(__func__, [=] {
    if (flags == 1) return standin::words(stream, {{true, static_cast<std::uint32_t*>(word), value}});
    return flags == 0 ? standin::wait_word(stream, word, value) : static_cast<int>(standin::not_supported);
  });
}
STANDIN_API int hipThreadExchangeStreamCaptureMode(int* mode) { return standin::exchange_capture_mode(mode); }
STANDIN_API int hipModuleLoadData(void** module, const void* code) {
  return call(__func__, [=] { return standin::load_module(module, code); });
}
STANDIN_API int hipModuleGetFunction(void** kernel, void* module, const char* name) {
  return call(__func__, [=] { return standin::find_kernel(kernel, module, name); });
}
STANDIN_API int hipModuleLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                                      unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                                      void** arguments, void** extra) {
  return call(__func__, [=] {
    return standin::launch_kernel(kernel, {x, y, z}, {threads_x, threads_y, threads_z}, shared, stream,
                                  arguments, extra);
  });
}
}
