// A stand-in for the CUDA and HIP drivers, in addition to the runtimes of device.cpp: the same streams, events
// and memory, with the drivers' rules.
#include "driver.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device.hpp"
#include "device_memory.hpp"
#include "machine.hpp"
#include "standin.h"

namespace standin {
namespace {

// Failure requests of tests, and the calls made.
struct driver_log {
  std::mutex mutex;
  std::map<std::string, int> calls;
  std::string failing;
  int countdown = 0, code = 0;
};
driver_log& driver_state() {
  static auto* const instance = new driver_log;
  return *instance;
}

std::vector<int>& contexts() {
  thread_local std::vector<int> stack;
  return stack;
}

}  // namespace

int enter_driver(const char* function) {
  driver_log& state = driver_state();
  const std::lock_guard lock(state.mutex);
  ++state.calls[function];
  if (state.failing != function || --state.countdown > 0) return success;
  state.failing.clear();
  return state.code;
}

int push_device(int device) {
  if (device < 0 || device >= machine::get().device_count) return invalid_device;
  contexts().push_back(machine::current());
  machine::current() = device;
  return success;
}

int pop_device(int* device) {
  if (contexts().empty()) return invalid_value;
  *device = machine::current();
  machine::current() = contexts().back();
  contexts().pop_back();
  return success;
}

std::shared_mutex& driver_lock() { return machine::get().lock_of(machine::current()); }

int call_release(const char* function, void* pointer) {
  const int code = enter_driver(function);
  return code != 0 ? code : release(pointer);
}

int memory_info(std::size_t* free, std::size_t* total) {
  *total = device_memory::get().capacity(machine::current());
  *free = *total - std::min(*total, device_memory::get().bytes_in_use(machine::current()));
  return success;
}

int pointer_attribute(void* value, int attribute, void* pointer) {
  const int owner = device_memory::get().owner(pointer);
  if (owner == -2) return invalid_value;
  switch (attribute) {
    case 2: *static_cast<unsigned*>(value) = owner < 0 ? 1 : 2; return success;  // memory type
    case 9: *static_cast<int*>(value) = owner < 0 ? 0 : owner; return success;   // ordinal
    default: return not_supported;
  }
}

int ipc_get(ipc_handle* handle, void* pointer) {
  ipc_address address{};
  const int code = device_memory::get().ipc_export(&address, pointer);
  static_assert(sizeof address <= sizeof *handle);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &address, sizeof address);
  return code;
}

int ipc_open(void** pointer, const ipc_handle& handle) {
  ipc_address address{};
  std::memcpy(&address, &handle, sizeof address);
  return device_memory::get().ipc_open(pointer, address);
}

int stream_is_capturing(void* handle, int* status) {
  *status = machine::get().resolve(handle).capturing ? 1 : 0;
  return success;
}

int fill(void* pointer, unsigned char value, std::size_t bytes, void* stream_handle) {
  stream& queue = machine::get().resolve(stream_handle);
  if (!device_memory::get().direct(queue.device, pointer, bytes)) return invalid_value;
  queue.submit([=] {
    if (value == 0)
      clear(pointer, bytes);
    else
      std::memset(pointer, value, bytes);
  });
  return success;
}

int write_word(void* stream_handle, void* word, std::uint32_t value) {
  stream& queue = machine::get().resolve(stream_handle);
  if (!device_memory::get().direct(queue.device, word, sizeof value)) return invalid_value;
  queue.submit([=] {
    const std::atomic_ref<std::uint32_t> target(*static_cast<std::uint32_t*>(word));
    target.store(value, std::memory_order_release);
  });
  return success;
}

// Waits until std::int32_t(*word - value) >= 0, like devices.
int wait_word(void* stream_handle, void* word, std::uint32_t value) {
  stream& queue = machine::get().resolve(stream_handle);
  if (!device_memory::get().direct(queue.device, word, sizeof value)) return invalid_value;
  queue.submit([=] {
    const std::atomic_ref<std::uint32_t> source(*static_cast<std::uint32_t*>(word));
    while (static_cast<std::int32_t>(source.load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(5));
  });
  return success;
}

int words(void* stream_handle, const std::vector<word_step>& steps) {
  stream& queue = machine::get().resolve(stream_handle);
  for (const word_step& step : steps)
    if (!device_memory::get().direct(queue.device, step.word, sizeof step.value)) return invalid_value;
  queue.submit([steps] {
    for (const word_step& step : steps) {
      const std::atomic_ref<std::uint32_t> word(*step.word);
      if (!step.waits) word.store(step.value, std::memory_order_release);
      while (step.waits && word.load(std::memory_order_acquire) != step.value)
        std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  });
  return success;
}

// Copies of a batch have no defined order. Shuffle them to expose code that relies on one.
int copy_batch(void** to, void** from, const std::size_t* bytes, std::size_t count, void* stream_handle) {
  if (stream_handle == nullptr || count == 0) return invalid_value;
  stream& queue = machine::get().resolve(stream_handle);
  if (queue.capturing) return capture_unsupported;
  device_memory& memory = device_memory::get();
  struct batch_copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<batch_copy> copies;
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes[i] == 0 || !memory.reachable(queue.device, to[i], bytes[i]) ||
        !memory.reachable(queue.device, from[i], bytes[i]))
      return invalid_value;
    copies.push_back({to[i], from[i], bytes[i]});
  }
  thread_local std::minstd_rand generator(std::random_device{}());
  std::shuffle(copies.begin(), copies.end(), generator);
  queue.submit([copies] {
    for (const batch_copy& each : copies) std::memcpy(each.to, each.from, each.bytes);
  });
  return success;
}

int device_name(char* text, int capacity, int device) {
  if (device < 0 || device >= machine::get().device_count) return invalid_device;
  std::snprintf(text, static_cast<std::size_t>(capacity), "stand-in device %d", device);
  return success;
}

int can_access_peer(int* can, int device, int peer) {
  const int count = machine::get().device_count;
  if (device < 0 || device >= count || peer < 0 || peer >= count) return invalid_device;
  *can = device_memory::get().connected(device, peer) ? 1 : 0;
  return success;
}

}  // namespace standin

extern "C" {
void standin_connect(int device, int peer, int connected) {
  standin::device_memory::get().connect(device, peer, connected != 0);
}
void standin_set_memory(size_t bytes) { standin::device_memory::get().set_capacity(bytes); }
void standin_set_descriptors(int supported) { standin::device_memory::get().set_sharing(supported != 0); }
size_t standin_live_memory(void) { return standin::device_memory::get().live(); }
int standin_live_streams(void) { return standin::machine::get().streams(); }
int standin_live_events(void) { return standin::machine::get().live_events; }
void standin_fail_driver(const char* function, int nth, int code) {
  auto& state = standin::driver_state();
  const std::lock_guard lock(state.mutex);
  state.failing = function;
  state.countdown = nth;
  state.code = code;
}
int standin_driver_calls(const char* function) {
  auto& state = standin::driver_state();
  const std::lock_guard lock(state.mutex);
  const auto entry = state.calls.find(function);
  return entry == state.calls.end() ? 0 : entry->second;
}
int standin_context_depth(void) { return static_cast<int>(standin::contexts().size()); }
}
