// Log of the signals that each call waits for. The watchdog uses it to release a stuck stream and to describe
// the failure. Captured calls are never removed, because a graph may be replayed at any time.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace isthmus::copy_engine {

struct call_record {
  std::uint32_t id = 0;  // never 0 for a call
  isthmus_collective collective{};
  isthmus_datatype datatype{};
  std::uint64_t count = 0;
  bool is_staged = false;
  std::vector<std::uint32_t> tags;  // by source; 0: the source sends nothing
};

// Thread safety: all functions may be called from any thread.
class call_log {
 public:
  void add(const call_record& record, bool is_captured) {
    const std::lock_guard lock(m_mutex);
    if (is_captured)
      m_captured[record.id] = record;
    else
      m_recent[record.id % m_recent.size()] = record;
  }

  std::optional<call_record> find(std::uint32_t id) const {
    const std::lock_guard lock(m_mutex);
    if (const call_record& recent = m_recent[id % m_recent.size()]; recent.id == id) return recent;
    const auto captured = m_captured.find(id);
    if (captured == m_captured.end()) return std::nullopt;
    return captured->second;
  }

  bool is_empty() const {
    const std::lock_guard lock(m_mutex);
    return m_captured.empty() &&
           std::ranges::all_of(m_recent, [](const auto& record) { return record.id == 0; });
  }

 private:
  // Larger than the number of calls that a driver queues before it blocks the host.
  static constexpr std::size_t recent_count = 1024;

  mutable std::mutex m_mutex;
  std::array<call_record, recent_count> m_recent;
  std::unordered_map<std::uint32_t, call_record> m_captured;
};

}  // namespace isthmus::copy_engine
