// Events recorded after enqueued calls. They show how long the oldest unfinished call has been running: the
// vendor library waits forever for a rank that is stopped or in a different call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/completion_events.hpp"
#include "device/gpu/functions.hpp"

namespace isthmus::nccl_family {

// Thread safety: one thread at a time, with the communicator's device current.
// Errors: if an event cannot be created or recorded (for example during graph capture), the
// call is not tracked.
class call_events {
 public:
  explicit call_events(const device_runtime& device) : m_device(device) {
    m_spare_events.reserve(max_spare_events);
  }
  call_events(const call_events&) = delete;
  call_events& operator=(const call_events&) = delete;
  ~call_events() { clear(); }

  // Returns true if an event must be recorded after the next call. An event doubles the host cost of a call, so
  // only programs that poll for failures pay for it. The first calls are always recorded, because the program
  // may start polling later.
  bool should_record() { return m_is_polled || ++m_call_count <= calls_before_first_poll; }

  void add(void* stream) {
    event_handle new_event = acquire_event();
    if (new_event == nullptr || m_device.event_record(new_event.get(), stream) != 0) return;
    m_recorded_events.add(std::move(new_event), watchdog_clock::now());
  }

  // Returns true if a call has been running for at least `timeout`. Queries the device only after that time,
  // because a query can invalidate a capture of another thread.
  bool has_timed_out(std::chrono::duration<double> timeout) {
    m_is_polled = true;
    while (!m_recorded_events.empty() &&
           watchdog_clock::now() - *m_recorded_events.oldest().start_time >= timeout) {
      if (m_device.event_query(m_recorded_events.oldest_event().get()) == gpu::not_ready) return true;
      m_recorded_events.drop_oldest();
    }
    return false;
  }

  void clear() {
    m_recorded_events.clear();
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
    } else if (m_device.event_create(&new_event, gpu::event_without_timing) != 0) {
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
  completion_events<event_handle> m_recorded_events;
};

}  // namespace isthmus::nccl_family
