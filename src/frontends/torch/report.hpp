// Counts the operations of this process by path, for isthmus.torch.report().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "frontends/preload/call_statistics.hpp"

namespace isthmus::torch_backend {

struct call_path {
  std::string group;       // name of the process group
  std::string device;      // "cpu", "cuda:0"
  std::string collective;  // name in the collective table
  std::string backend;     // "shm:one_shot"; "torch:gloo" for a fallback to PyTorch
  std::string reason;      // for the selection or the fallback
  auto operator<=>(const call_path&) const = default;
};

using preload::call_counter;

// The report of this process.
// Thread safety: all functions may be called from any thread.
// Lifetime: counters exist until the process exits.
class path_report {
 public:
  static path_report& instance() {
    static path_report* const report = new path_report;  // outlives worker threads at exit
    return *report;
  }

  call_counter& counter_for(const call_path& path) {
    const std::lock_guard lock(m_mutex);
    auto& counter = m_counters[path];
    if (!counter) counter = std::make_unique<call_counter>();
    return *counter;
  }

  struct row {
    call_path path;
    std::uint64_t calls, bytes;
    double seconds;
  };
  // Returns the paths used since the last reset.
  std::vector<row> rows() {
    const std::lock_guard lock(m_mutex);
    std::vector<row> result;
    for (const auto& [path, counter] : m_counters)
      if (counter->calls > 0)
        result.push_back(
            {path, counter->calls, counter->bytes, static_cast<double>(counter->nanoseconds.load()) / 1e9});
    return result;
  }

  void reset() {
    const std::lock_guard lock(m_mutex);
    for (auto& [path, counter] : m_counters) counter->calls = 0, counter->bytes = 0, counter->nanoseconds = 0;
  }

 private:
  std::mutex m_mutex;
  std::map<call_path, std::unique_ptr<call_counter>> m_counters;
};

}  // namespace isthmus::torch_backend
