// How far a stream has come, for a watchdog that may ask about it seldom only.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>

#include "device/watchdog.hpp"

namespace isthmus {

// Marks (events) behind the operations of one stream: one a second, and always the newest. A stream that hangs
// hangs from its first stuck operation on, so the mark of any later one tells as much as its own; but the
// newest may be the last that there will ever be. Not thread-safe.
template <typename Event>
class completion_events {
 public:
  bool empty() const { return m_events.empty(); }
  std::size_t size() const { return m_events.size(); }

  void add(Event event, watchdog_clock::time_point now) {
    entry added{++m_last_id, now, std::move(event)};
    const std::size_t n = m_events.size();
    if (n >= 2 && m_events[n - 1].since - m_events[n - 2].since < std::chrono::seconds(1))
      m_events.back() = std::move(added);
    else
      m_events.push_back(std::move(added));
  }

  // Precondition of what follows: not empty.
  watched_operation oldest() const { return {m_events.front().id, m_events.front().since}; }
  const Event& oldest_event() const { return m_events.front().event; }
  void drop_oldest() { m_events.pop_front(); }
  void clear() { m_events.clear(); }

 private:
  struct entry {
    std::uint64_t id;
    watchdog_clock::time_point since;
    Event event;
  };
  std::deque<entry> m_events;
  std::uint64_t m_last_id = 0;
};

}  // namespace isthmus
