// Which path the operations of this process really took: the counts behind isthmus.torch.report().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace isthmus::torch_backend {

struct path {
  std::string group;       // name of the process group
  std::string device;      // "cpu", "cuda:0"
  std::string collective;  // a name of THE TABLE
  std::string backend;     // "host:one_shot"; "torch:gloo" for what fell back to PyTorch
  std::string reason;      // the selector's, or why it fell back
  auto operator<=>(const path&) const = default;
};

struct tally {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};

  void add(std::uint64_t more_bytes) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(more_bytes, std::memory_order_relaxed);
  }
};

// Thread-safe. One for the process; tallies live as long as it.
class path_report {
 public:
  static path_report& instance() {
    static path_report* const only = new path_report;  // outlives worker threads at exit
    return *only;
  }

  tally& of(const path& taken) {
    const std::lock_guard lock(m_mutex);
    auto& place = m_tallies[taken];
    if (!place) place = std::make_unique<tally>();
    return *place;
  }

  struct row {
    path taken;
    std::uint64_t calls, bytes;
  };
  // Paths that were taken since the last reset.
  std::vector<row> rows() {
    const std::lock_guard lock(m_mutex);
    std::vector<row> result;
    for (const auto& [taken, count] : m_tallies)
      if (count->calls > 0) result.push_back({taken, count->calls, count->bytes});
    return result;
  }

  void reset() {
    const std::lock_guard lock(m_mutex);
    for (auto& [taken, count] : m_tallies) count->calls = 0, count->bytes = 0;
  }

 private:
  std::mutex m_mutex;
  std::map<path, std::unique_ptr<tally>> m_tallies;
};

}  // namespace isthmus::torch_backend
