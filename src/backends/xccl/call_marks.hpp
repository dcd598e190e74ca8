// Events behind the calls that were handed to streams: how long the oldest that has not ended lasts. The
// vendor's library waits for a rank that is stopped, or in another call, for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/runtime.hpp"
#include "device/completion_events.hpp"

namespace isthmus::xccl {

// Calls come from one thread at a time, with the session's device current. An event that can't be made or
// recorded (in a graph that is captured, say) marks nothing.
class call_marks {
 public:
  explicit call_marks(const device_runtime& device) : m_device(device) { m_spare.reserve(most_spare); }
  call_marks(const call_marks&) = delete;
  call_marks& operator=(const call_marks&) = delete;
  ~call_marks() { clear(); }

  // Whether the next call is marked. An event costs the host as much as the rest of what a call costs here, so
  // only a program that asks for failures pays for it; at first all do, as nobody knows who will ask.
  bool is_due() { return m_is_asked || ++m_calls <= calls_before_asked; }

  void add(void* stream) {
    mark made = take();
    if (made == nullptr || m_device.event_record(made.get(), stream) != 0) return;
    m_marks.add(std::move(made), watchdog_clock::now());
  }

  // Whether a call has lasted for `timeout`. Asks the device only then: questions disturb other threads'
  // captures.
  bool any_late(std::chrono::duration<double> timeout) {
    m_is_asked = true;
    while (!m_marks.empty() && watchdog_clock::now() - *m_marks.oldest().since >= timeout) {
      if (m_device.event_query(m_marks.oldest_event().get()) == runtime_not_ready) return true;
      m_marks.drop_oldest();
    }
    return false;
  }

  void clear() {
    m_marks.clear();
    for (void* const event : m_spare) m_device.event_destroy(event);
    m_spare.clear();
  }

 private:
  using mark = std::shared_ptr<void>;
  static constexpr std::uint64_t calls_before_asked = 64;
  static constexpr std::size_t most_spare = 16;

  mark take() {
    void* made = nullptr;
    if (!m_spare.empty()) {
      made = m_spare.back();
      m_spare.pop_back();
    } else if (m_device.event_create(&made, event_without_timing) != 0) {
      return nullptr;
    }
    return {made, [this](void* event) { give_back(event); }};
  }
  void give_back(void* event) {
    if (m_spare.size() < most_spare)
      m_spare.push_back(event);
    else
      m_device.event_destroy(event);
  }

  const device_runtime& m_device;
  bool m_is_asked = false;
  std::uint64_t m_calls = 0;
  std::vector<void*> m_spare;
  completion_events<mark> m_marks;
};

}  // namespace isthmus::xccl
