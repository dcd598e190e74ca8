#include "device/owned.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus {
namespace {

// Pinned memory that currently has no owner.
struct pinned_pool {
  std::mutex mutex;
  std::map<std::pair<device_driver*, std::uint64_t>, std::vector<void*>> free;

  static pinned_pool& get() {
    static auto* const pool = new pinned_pool;
    return *pool;
  }
  void* acquire(device_driver& driver, std::uint64_t bytes) {
    {
      const std::lock_guard lock(mutex);
      auto& blocks = free[{&driver, bytes}];
      if (!blocks.empty()) {
        void* const block = blocks.back();
        blocks.pop_back();
        return block;
      }
    }
    return driver.allocate_host(bytes);
  }
  void release(device_driver& driver, std::uint64_t bytes, void* block) {
    const std::lock_guard lock(mutex);
    free[{&driver, bytes}].push_back(block);
  }
};

void release_stream(device_driver& driver, int device, std::uint64_t, void* stream) {
  driver.destroy_stream(device, stream);
}
void release_event(device_driver& driver, int, std::uint64_t, void* event) { driver.destroy_event(event); }
void release_pinned(device_driver& driver, int, std::uint64_t bytes, void* block) {
  pinned_pool::get().release(driver, bytes, block);
}
void release_memory(device_driver& driver, int device, std::uint64_t, void* block) {
  driver.free(device, block);
}

}  // namespace

void owned_object::reset() noexcept {
  void* const object = std::exchange(m_object, nullptr);
  if (object == nullptr) return;
  try {
    m_release(*m_driver, m_device, m_bytes, object);
  } catch (const std::exception& failure) {
    log(log_level::debug, "device {}: cannot release an object: {}", m_device, failure.what());
  }
}

owned_stream::owned_stream(device_driver& driver, int device, stream_priority priority)
    : owned_object(driver, device, 0, driver.create_stream(device, priority), release_stream) {}

owned_event::owned_event(device_driver& driver, int device, event_timing timing)
    : owned_object(driver, device, 0,
                   timing == event_timing::on ? driver.create_timed_event(device) : driver.create_event(device),
                   release_event) {}

owned_pinned::owned_pinned(device_driver& driver, std::uint64_t bytes)
    : owned_object(driver, -1, bytes, pinned_pool::get().acquire(driver, bytes), release_pinned) {
  std::memset(get(), 0, bytes);
}

owned_memory::owned_memory(device_driver& driver, int device, std::uint64_t bytes)
    : owned_object(driver, device, bytes, driver.allocate(device, bytes), release_memory) {}

}  // namespace isthmus
