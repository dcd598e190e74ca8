#include "backend/copy_engine/holdings.hpp"

#include <cstring>

#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace isthmus::copy_engine {

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
  m_pinned.push_back(m_driver.allocate_host(bytes));
  std::memset(m_pinned.back(), 0, bytes);
  return m_pinned.back();
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
  for (void* pointer : m_pinned) attempt([&] { m_driver.free_host(pointer); });
}

}  // namespace isthmus::copy_engine
