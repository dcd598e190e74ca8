// The timeline of one run: what moved and what was computed, when.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace isthmus::fused {

enum class track { compute, copy, stage };

struct slice {
  track where;
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
  void add(slice each);
  // The Chrome trace format: process = rank, thread = track.
  nlohmann::json chrome(int rank) const;

  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
  }

 private:
  bool m_enabled;
  mutable std::mutex m_mutex;
  std::vector<slice> m_slices;
};

// Adds the time of its own life to a timeline that is enabled.
class traced {
 public:
  template <typename Name>
  traced(timeline& on, track where, Name&& name) : m_on(on), m_where(where) {
    if (!on.enabled()) return;
    m_name = name();
    m_begin_ns = timeline::now_ns();
  }
  ~traced() {
    if (m_on.enabled()) m_on.add({m_where, std::move(m_name), m_begin_ns, timeline::now_ns()});
  }
  traced(const traced&) = delete;
  traced& operator=(const traced&) = delete;

 private:
  timeline& m_on;
  track m_where;
  std::string m_name;
  std::int64_t m_begin_ns = 0;
};

}  // namespace isthmus::fused
