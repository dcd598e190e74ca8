// The timeline of one run: when data was copied and when products were computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace isthmus::fused {

enum class trace_track { compute, copy, stage };

struct trace_slice {
  trace_track track;
  std::string name;
  std::int64_t begin_ns, end_ns;  // on the steady clock, which all processes of a machine share
};

class timeline {
 public:
  using clock = std::chrono::steady_clock;

  explicit timeline(bool is_enabled) : m_is_enabled(is_enabled) {}
  bool is_enabled() const { return m_is_enabled; }
  void clear();
  // Thread safety: any thread.
  void add(trace_slice slice);
  // Returns the Chrome trace format: process = rank, thread = track.
  nlohmann::json chrome(int rank) const;

  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
  }

 private:
  bool m_is_enabled;
  mutable std::mutex m_mutex;
  std::vector<trace_slice> m_slices;
};

// Adds the lifetime of this object to a timeline, if the timeline is enabled.
class scoped_trace {
 public:
  template <typename Name>
  scoped_trace(timeline& target, trace_track track, Name&& name) : m_timeline(target), m_track(track) {
    if (!target.is_enabled()) return;
    m_name = name();
    m_begin_ns = timeline::now_ns();
  }
  ~scoped_trace() {
    if (m_timeline.is_enabled()) m_timeline.add({m_track, std::move(m_name), m_begin_ns, timeline::now_ns()});
  }
  scoped_trace(const scoped_trace&) = delete;
  scoped_trace& operator=(const scoped_trace&) = delete;

 private:
  timeline& m_timeline;
  trace_track m_track;
  std::string m_name;
  std::int64_t m_begin_ns = 0;
};

}  // namespace isthmus::fused
