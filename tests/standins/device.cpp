// A stand-in for the CUDA and HIP runtimes: device memory is host memory, and a stream is a
// thread with a queue.
#include "device.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device_memory.hpp"
#include "machine.hpp"
#include "standin.h"

namespace standin {

int get_device_count(int* count) {
  *count = machine::get().device_count;
  return *count > 0 ? success : no_device;
}
int get_device(int* device) { return *device = machine::current(), success; }
int set_device(int device) {
  if (device < 0 || device >= machine::get().device_count) return invalid_device;
  machine::current() = device;
  return success;
}
int bus_id(char* text, int capacity, int device) {
  if (device < 0 || device >= machine::get().device_count) return invalid_device;
  std::snprintf(text, static_cast<std::size_t>(capacity), "0000:%02x:00.0", machine::get().bus_of(device) + 1);
  return success;
}
int get_attribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 98 ? 1 : 0;  // 98: flushes
  return success;
}
int device_synchronize() { return machine::get().synchronize(machine::current()), success; }
int allocate(void** pointer, std::size_t bytes) {
  return device_memory::get().allocate(pointer, bytes, machine::current());
}
int allocate_host(void** pointer, std::size_t bytes) {
  return device_memory::get().allocate_host(pointer, bytes);
}
int release(void* pointer) {
  const std::lock_guard lock(machine::get().lock_of(machine::current()));
  machine::get().synchronize(machine::current());  // as cudaFree does
  return device_memory::get().free(pointer);
}
int release_async(void* pointer, void* stream_handle) {
  machine::get().resolve(stream_handle).submit([pointer] { device_memory::get().free(pointer); });
  return success;
}
int copy_async(void* to, const void* from, std::size_t bytes, int, void* stream_handle) {
  stream& target = machine::get().resolve(stream_handle);
  device_memory& memory = device_memory::get();
  if (!memory.reachable(target.device, to, bytes) || !memory.reachable(target.device, from, bytes))
    return invalid_value;
  target.submit([=] { std::memcpy(to, from, bytes); });
  return success;
}
int stream_create(void** handle, unsigned flags) { return *handle = machine::get().create(flags), success; }
int stream_get_flags(void* handle, unsigned* flags) {
  return *flags = machine::get().resolve(handle).flags, success;
}
int stream_destroy(void* handle) {
  return machine::get().destroy(static_cast<stream*>(handle)) ? success : invalid_value;
}
int stream_synchronize(void* handle) { return machine::get().resolve(handle).synchronize(), success; }
int stream_query(void* handle) { return machine::get().resolve(handle).idle() ? success : not_ready; }
int launch_host(void* handle, void (*function)(void*), void* argument) {
  machine::get().resolve(handle).submit([=] { function(argument); });
  return success;
}
int event_create(void** handle) {
  ++machine::get().live_events;
  return *handle = new std::shared_ptr<event>(new event), success;
}
int event_destroy(void* handle) {
  --machine::get().live_events;
  return delete static_cast<std::shared_ptr<event>*>(handle), success;
}
int event_record(void* handle, void* stream_handle) {
  const auto recorded_event = *static_cast<std::shared_ptr<event>*>(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(recorded_event->mutex);
    number = ++recorded_event->recorded;
  }
  machine::get().resolve(stream_handle).submit([recorded_event, number] {
    const std::lock_guard lock(recorded_event->mutex);
    if (number > recorded_event->reached)
      recorded_event->reached = number, recorded_event->reach_time = std::chrono::steady_clock::now();
    recorded_event->changed.notify_all();
  });
  return success;
}
int event_query(void* handle) {
  const auto recorded_event = *static_cast<std::shared_ptr<event>*>(handle);
  const std::lock_guard lock(recorded_event->mutex);
  return recorded_event->reached == recorded_event->recorded ? success : not_ready;
}
int event_elapsed(float* milliseconds, void* begin, void* end) {
  std::chrono::steady_clock::time_point timestamps[2];
  for (int i = 0; i < 2; ++i) {
    const auto recorded_event = *static_cast<std::shared_ptr<event>*>(i == 0 ? begin : end);
    const std::lock_guard lock(recorded_event->mutex);
    if (recorded_event->recorded == 0) return invalid_value;
    if (recorded_event->reached != recorded_event->recorded) return not_ready;
    timestamps[i] = recorded_event->reach_time;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(timestamps[1] - timestamps[0]).count();
  return success;
}
int event_synchronize(void* handle) {
  const auto recorded_event = *static_cast<std::shared_ptr<event>*>(handle);
  std::unique_lock lock(recorded_event->mutex);
  const std::uint64_t ticket = recorded_event->recorded;
  recorded_event->changed.wait(lock, [&] { return recorded_event->reached >= ticket; });
  return success;
}
int stream_wait_event(void* stream_handle, void* handle) {
  const auto recorded_event = *static_cast<std::shared_ptr<event>*>(handle);
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(recorded_event->mutex);
    ticket = recorded_event->recorded;
  }
  machine::get().resolve(stream_handle).submit([recorded_event, ticket] {
    std::unique_lock lock(recorded_event->mutex);
    recorded_event->changed.wait(lock, [&] { return recorded_event->reached >= ticket; });
  });
  return success;
}
const char* error_text(int error) {
  switch (static_cast<result>(error)) {
    case success: return "no error";
    case invalid_value: return "invalid argument";
    case out_of_memory: return "out of memory";
    case no_device: return "no device is detected";
    case invalid_device: return "invalid device ordinal";
    case invalid_handle: return "invalid resource handle";
    case not_ready: return "device not ready";
    case illegal_address: return "an illegal memory access was encountered";
    case peer_already_enabled: return "peer access is already enabled";
    case not_supported: return "operation not supported";
    case capture_unsupported: return "operation not permitted when stream is capturing";
  }
  return "unknown error";
}

}  // namespace standin

extern "C" {
void standin_stream_submit(void* handle, void (*function)(void*), void* argument) {
  standin::machine::get().resolve(handle).submit([=] { function(argument); });
}
void standin_set_device_count(int count) { standin::machine::get().device_count = count; }
void standin_alias_device(int a, int b) { standin::machine::get().alias(a, b); }
void standin_set_capturing(void* handle, int capturing) {
  standin::machine::get().resolve(handle).capturing = capturing != 0;
}
}
