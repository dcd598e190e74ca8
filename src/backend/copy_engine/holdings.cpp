#include "backend/copy_engine/holdings.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace isthmus::copy_engine {
namespace {

// Pinned memory of ranks that ended, for ranks to come. It never goes back to the driver: freeing it waits for
// all streams of a device, and a stream of another rank of this process may wait for this very thread.
struct pinned_pool {
  std::mutex mutex;
  std::map<std::pair<device_driver*, std::uint64_t>, std::vector<void*>> free;

  static pinned_pool& get() {
    static auto* const one = new pinned_pool;
    return *one;
  }
  void* take(device_driver& driver, std::uint64_t bytes) {
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
  void give(device_driver& driver, std::uint64_t bytes, void* block) {
    const std::lock_guard lock(mutex);
    free[{&driver, bytes}].push_back(block);
  }
};

}  // namespace

native_stream holdings::stream(stream_priority priority) {
  m_streams.reserve(m_streams.size() + 1);
  m_streams.push_back(m_driver.create_stream(m_device, priority));
  return m_streams.back();
}

native_event holdings::event() {
  m_events.reserve(m_events.size() + 1);
  m_events.push_back(m_driver.create_event(m_device));
  return m_events.back();
}

void* holdings::pinned(std::uint64_t bytes) {
  m_pinned.reserve(m_pinned.size() + 1);
  m_pinned.push_back({pinned_pool::get().take(m_driver, bytes), bytes});
  std::memset(m_pinned.back().memory, 0, bytes);
  return m_pinned.back().memory;
}

// After a fault of the device its calls fail; what can be released is.
holdings::~holdings() {
  const auto attempt = [](auto&& release) {
    try {
      release();
    } catch (const error& caught) {
      log(log_level::debug, "copy_engine: {}", caught.what());
    }
  };
  for (native_event event : m_events) attempt([&] { m_driver.destroy_event(event); });
  for (native_stream stream : m_streams) attempt([&] { m_driver.destroy_stream(m_device, stream); });
  for (const pinned_block& block : m_pinned) pinned_pool::get().give(m_driver, block.bytes, block.memory);
}

}  // namespace isthmus::copy_engine
