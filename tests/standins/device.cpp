// A stand-in for the CUDA and HIP runtimes: devices are host memory, a stream is a thread with a queue.
#include "device.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "standin.h"

namespace {

enum result : int { success = 0, invalid_value = 1, out_of_memory = 2, not_ready = 600, invalid_device = 101 };

// Runs tasks in order in a thread of its own, as a device does.
class stream {
 public:
  stream() : m_thread([this] { run(); }) {}
  ~stream() {
    {
      const std::lock_guard lock(m_mutex);
      m_stop = true;
    }
    m_changed.notify_all();
    m_thread.join();
  }
  void submit(std::function<void()> task) {
    {
      const std::lock_guard lock(m_mutex);
      m_tasks.push_back(std::move(task));
      ++m_submitted;
    }
    m_changed.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(m_mutex);
    const std::uint64_t until = m_submitted;
    m_changed.wait(lock, [&] { return m_completed >= until; });
  }
  bool idle() {
    const std::lock_guard lock(m_mutex);
    return m_completed == m_submitted;
  }

 private:
  void run() {
    std::unique_lock lock(m_mutex);
    while (true) {
      m_changed.wait(lock, [this] { return m_stop || !m_tasks.empty(); });
      if (m_tasks.empty()) return;
      const auto task = std::move(m_tasks.front());
      m_tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
      ++m_completed;
      m_changed.notify_all();
    }
  }

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<std::function<void()>> m_tasks;
  std::uint64_t m_submitted = 0, m_completed = 0;
  bool m_stop = false;
  std::thread m_thread;
};

// Marks a point of a stream.
struct event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;
};

class machine {
 public:
  static machine& get() {
    static auto* const only = new machine;  // streams may outlive static destruction
    return *only;
  }
  std::atomic<int> device_count{8};
  static int& current() {
    thread_local int device = 0;
    return device;
  }

  stream* create() {
    const std::lock_guard lock(m_mutex);
    auto made = std::make_unique<stream>();
    stream* const raw = made.get();
    m_streams[raw] = {std::move(made), current()};
    return raw;
  }
  bool destroy(stream* target) {
    std::unique_ptr<stream> dying;
    const std::lock_guard lock(m_mutex);
    const auto found = m_streams.find(target);
    if (found == m_streams.end()) return false;
    dying = std::move(found->second.first);
    m_streams.erase(found);
    dying.reset();  // joins: everything submitted is done
    return true;
  }
  stream& resolve(void* handle) {
    if (handle != nullptr) return *static_cast<stream*>(handle);
    const std::lock_guard lock(m_mutex);
    auto& made = m_defaults[current()];
    if (made == nullptr) made = std::make_unique<stream>();
    return *made;
  }
  // Waits for every stream of a device. Streams must not be destroyed meanwhile, as on a real device.
  void synchronize(int device) {
    std::set<stream*> all;
    {
      const std::lock_guard lock(m_mutex);
      for (auto& [raw, owned] : m_streams)
        if (owned.second == device) all.insert(raw);
      if (m_defaults[device] != nullptr) all.insert(m_defaults[device].get());
    }
    for (stream* each : all) each->synchronize();
  }
  int bus_of(int device) {
    const std::lock_guard lock(m_mutex);
    const auto found = m_aliases.find(device);
    return found == m_aliases.end() ? device : found->second;
  }
  void alias(int a, int b) {
    const std::lock_guard lock(m_mutex);
    m_aliases[a] = b;
  }

 private:
  std::mutex m_mutex;
  std::map<stream*, std::pair<std::unique_ptr<stream>, int>> m_streams;
  std::map<int, std::unique_ptr<stream>> m_defaults;
  std::map<int, int> m_aliases;
};

}  // namespace

namespace standin {

int get_device_count(int* count) {
  *count = machine::get().device_count;
  return *count > 0 ? success : 100;  // "no device"
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
  *value = attribute == 75 ? 9 : 0;
  return success;
}
int device_synchronize() { return machine::get().synchronize(machine::current()), success; }
int allocate(void** pointer, std::size_t bytes) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer != nullptr || bytes == 0 ? success : out_of_memory;
}
int release(void* pointer) {
  machine::get().synchronize(machine::current());  // as cudaFree does
  std::free(pointer);
  return success;
}
int release_async(void* pointer, void* on) {
  machine::get().resolve(on).submit([pointer] { std::free(pointer); });
  return success;
}
int copy_async(void* to, const void* from, std::size_t bytes, int, void* on) {
  machine::get().resolve(on).submit([=] { std::memcpy(to, from, bytes); });
  return success;
}
int stream_create(void** handle) { return *handle = machine::get().create(), success; }
int stream_destroy(void* handle) {
  return machine::get().destroy(static_cast<stream*>(handle)) ? success : invalid_value;
}
int stream_synchronize(void* handle) { return machine::get().resolve(handle).synchronize(), success; }
int stream_query(void* handle) { return machine::get().resolve(handle).idle() ? success : not_ready; }
int launch_host(void* handle, void (*function)(void*), void* argument) {
  machine::get().resolve(handle).submit([=] { function(argument); });
  return success;
}
int event_create(void** handle) { return *handle = new event, success; }
int event_destroy(void* handle) { return delete static_cast<event*>(handle), success; }
int event_record(void* handle, void* on) {
  auto& mark = *static_cast<event*>(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mark.mutex);
    number = ++mark.recorded;
  }
  machine::get().resolve(on).submit([&mark, number] {
    const std::lock_guard lock(mark.mutex);
    if (number > mark.reached) mark.reached = number;
    mark.changed.notify_all();
  });
  return success;
}
int event_query(void* handle) {
  auto& mark = *static_cast<event*>(handle);
  const std::lock_guard lock(mark.mutex);
  return mark.reached == mark.recorded ? success : not_ready;
}
int event_synchronize(void* handle) {
  auto& mark = *static_cast<event*>(handle);
  std::unique_lock lock(mark.mutex);
  const std::uint64_t until = mark.recorded;
  mark.changed.wait(lock, [&] { return mark.reached >= until; });
  return success;
}
int stream_wait_event(void* on, void* handle) {
  auto& mark = *static_cast<event*>(handle);
  std::uint64_t until = 0;
  {
    const std::lock_guard lock(mark.mutex);
    until = mark.recorded;
  }
  machine::get().resolve(on).submit([&mark, until] {
    std::unique_lock lock(mark.mutex);
    mark.changed.wait(lock, [&] { return mark.reached >= until; });
  });
  return success;
}
const char* error_text(int error) {
  switch (static_cast<result>(error)) {
    case success: return "no error";
    case invalid_value: return "invalid argument";
    case out_of_memory: return "out of memory";
    case not_ready: return "device not ready";
    case invalid_device: return "invalid device ordinal";
  }
  return error == 100 ? "no device is detected" : "unknown error";
}

}  // namespace standin

extern "C" {
void standin_stream_submit(void* handle, void (*function)(void*), void* argument) {
  machine::get().resolve(handle).submit([=] { function(argument); });
}
// The driver's wait on a word of memory, which device code and hosts write.
STANDIN_API int cuStreamWaitValue32_v2(void* handle, std::uint64_t address, std::uint32_t value, unsigned) {
  machine::get().resolve(handle).submit([=] {
    const std::atomic_ref<std::uint32_t> word(*reinterpret_cast<std::uint32_t*>(address));
    while (word.load(std::memory_order_acquire) < value) std::this_thread::yield();
  });
  return 0;
}
STANDIN_API int hipStreamWaitValue32(void* handle, void* address, std::uint32_t value, unsigned flags,
                                     std::uint32_t) {
  return cuStreamWaitValue32_v2(handle, reinterpret_cast<std::uint64_t>(address), value, flags);
}

void standin_set_device_count(int count) { machine::get().device_count = count; }
void standin_alias_device(int a, int b) { machine::get().alias(a, b); }
}
