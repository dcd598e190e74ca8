// Events behind the calls that were handed to streams: how long the oldest that has not ended lasts. The
// vendor's library waits for a rank that is stopped, or in another call, for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/runtime.hpp"
#include "device/completion_events.hpp"

namespace isthmus::nccl_family {

// Calls come from one thread at a time, with the session's device current. An event that can't be made or
// recorded (in a graph that is captured, say) marks nothing.
class call_events {
 public:
  explicit call_events(const device_runtime& device) : m_device(device) { m_spare_events.reserve(max_spare_events); }
  call_events(const call_events&) = delete;
  call_events& operator=(const call_events&) = delete;
  ~call_events() { clear(); }

  // Whether the next call is marked. An event costs the host as much as the rest of what a call costs here, so
  // only a program that asks for failures pays for it; at first all do, as nobody knows who will ask.
  bool should_record() { return m_is_polled || ++m_call_count <= calls_before_first_poll; }

  void add(void* stream) {
    event_handle new_event = acquire_event();
    if (new_event == nullptr || m_device.event_record(new_event.get(), stream) != 0) return;
    m_recorded.add(std::move(new_event), watchdog_clock::now());
  }

  // Whether a call has lasted for `timeout`. Asks the device only then: questions disturb other threads'
  // captures.
  bool has_timed_out(std::chrono::duration<double> timeout) {
    m_is_polled = true;
    while (!m_recorded.empty() && watchdog_clock::now() - *m_recorded.oldest().since >= timeout) {
      if (m_device.event_query(m_recorded.oldest_event().get()) == runtime_not_ready) return true;
      m_recorded.drop_oldest();
    }
    return false;
  }

  void clear() {
    m_recorded.clear();
    for (void* const event : m_spare_events) m_device.event_destroy(event);
    m_spare_events.clear();
  }

 private:
  using event_handle = std::shared_ptr<void>;
  static constexpr std::uint64_t calls_before_first_poll = 64;
  static constexpr std::size_t max_spare_events = 16;

  event_handle acquire_event() {
    void* new_event = nullptr;
    if (!m_spare_events.empty()) {
      new_event = m_spare_events.back();
      m_spare_events.pop_back();
    } else if (m_device.event_create(&new_event, event_without_timing) != 0) {
      return nullptr;
    }
    return {new_event, [this](void* event) { release_event(event); }};
  }
  void release_event(void* event) {
    if (m_spare_events.size() < max_spare_events)
      m_spare_events.push_back(event);
    else
      m_device.event_destroy(event);
  }

  const device_runtime& m_device;
  bool m_is_polled = false;
  std::uint64_t m_call_count = 0;
  std::vector<void*> m_spare_events;
  completion_events<event_handle> m_recorded;
};

}  // namespace isthmus::xccl
