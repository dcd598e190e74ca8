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
template <typename Mark>
class stream_marks {
 public:
  bool empty() const { return m_marks.empty(); }
  std::size_t size() const { return m_marks.size(); }

  void add(Mark mark, watchdog_clock::time_point now) {
    entry added{++m_last_id, now, std::move(mark)};
    const std::size_t n = m_marks.size();
    if (n >= 2 && m_marks[n - 1].since - m_marks[n - 2].since < std::chrono::seconds(1))
      m_marks.back() = std::move(added);
    else
      m_marks.push_back(std::move(added));
  }

  // Precondition of what follows: not empty.
  watched_operation oldest() const { return {m_marks.front().id, m_marks.front().since}; }
  const Mark& oldest_mark() const { return m_marks.front().mark; }
  void drop_oldest() { m_marks.pop_front(); }
  void clear() { m_marks.clear(); }

 private:
  struct entry {
    std::uint64_t id;
    watchdog_clock::time_point since;
    Mark mark;
  };
  std::deque<entry> m_marks;
  std::uint64_t m_last_id = 0;
};

}  // namespace isthmus
