// Which path the operations of this process really took: the counts behind isthmus.torch.report().
#pragma once

#include <atomic>
#include <chrono>
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
  std::string backend;     // "shm:one_shot"; "torch:gloo" for what fell back to PyTorch
  std::string reason;      // the selector's, or why it fell back
  auto operator<=>(const path&) const = default;
};

struct tally {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> nanoseconds{0};  // of the host, inside of Isthmus

  void add(std::uint64_t more_bytes, std::chrono::nanoseconds took = {}) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(more_bytes, std::memory_order_relaxed);
    nanoseconds.fetch_add(took.count(), std::memory_order_relaxed);
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
    auto& found = m_tallies[taken];
    if (!found) found = std::make_unique<tally>();
    return *found;
  }

  struct row {
    path taken;
    std::uint64_t calls, bytes;
    double seconds;
  };
  // Paths that were taken since the last reset.
  std::vector<row> rows() {
    const std::lock_guard lock(m_mutex);
    std::vector<row> result;
    for (const auto& [taken, count] : m_tallies)
      if (count->calls > 0)
        result.push_back(
            {taken, count->calls, count->bytes, static_cast<double>(count->nanoseconds.load()) / 1e9});
    return result;
  }

  void reset() {
    const std::lock_guard lock(m_mutex);
    for (auto& [taken, count] : m_tallies) count->calls = 0, count->bytes = 0, count->nanoseconds = 0;
  }

 private:
  std::mutex m_mutex;
  std::map<path, std::unique_ptr<tally>> m_tallies;
};

}  // namespace isthmus::torch_backend
