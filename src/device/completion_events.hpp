// Tracks the progress of a stream for a watchdog, with few events.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>

#include "failure/watchdog.hpp"

namespace isthmus {

// Completion events of the operations of one stream: at most one per second, and always that of the most recent
// operation. If a stream hangs, all operations after the stuck one hang as well, so any later event is
// sufficient. The most recent event is kept, because there may be no later one.
// Thread safety: none.
template <typename Event>
class completion_events {
 public:
  bool empty() const { return m_events.empty(); }
  std::size_t size() const { return m_events.size(); }

  void add(Event event, watchdog_clock::time_point now) {
    event_entry new_entry{++m_last_id, now, std::move(event)};
    const std::size_t n = m_events.size();
    if (n >= 2 && m_events[n - 1].start_time - m_events[n - 2].start_time < std::chrono::seconds(1))
      m_events.back() = std::move(new_entry);
    else
      m_events.push_back(std::move(new_entry));
  }

  // Precondition of the functions below: not empty.
  watched_operation oldest() const { return {m_events.front().id, m_events.front().start_time}; }
  const Event& oldest_event() const { return m_events.front().event; }
  void drop_oldest() { m_events.pop_front(); }
  void clear() { m_events.clear(); }

 private:
  struct event_entry {
    std::uint64_t id;
    watchdog_clock::time_point start_time;
    Event event;
  };
  std::deque<event_entry> m_events;
  std::uint64_t m_last_id = 0;
};

}  // namespace isthmus
