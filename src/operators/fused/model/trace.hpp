// The timeline of one run: what moved and what was computed, when.
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
  std::int64_t begin_ns, end_ns;  // of the steady clock, which the processes of a machine share
};

class timeline {
 public:
  using clock = std::chrono::steady_clock;

  explicit timeline(bool enabled) : m_enabled(enabled) {}
  bool enabled() const { return m_enabled; }
  void clear();
  // Any thread.
  void add(trace_slice slice);
  // The Chrome trace format: process = rank, thread = track.
  nlohmann::json chrome(int rank) const;

  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
  }

 private:
  bool m_enabled;
  mutable std::mutex m_mutex;
  std::vector<trace_slice> m_slices;
};

// Adds the time of its own life to a timeline that is enabled.
class scoped_trace {
 public:
  template <typename Name>
  scoped_trace(timeline& target, trace_track track, Name&& name) : m_timeline(target), m_track(track) {
    if (!target.enabled()) return;
    m_name = name();
    m_begin_ns = timeline::now_ns();
  }
  ~scoped_trace() {
    if (m_timeline.enabled()) m_timeline.add({m_track, std::move(m_name), m_begin_ns, timeline::now_ns()});
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
