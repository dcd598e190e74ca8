// The communicators whose calls are part of captured graphs. Python refuses to replay a graph if one of them has ended.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

// Outlives its communicator.
struct captured_communicator {
  explicit captured_communicator(std::string group_name) : group(std::move(group_name)) {}
  const std::string group;
  std::atomic<bool> has_ended{false};
};

// Thread safety: all functions may be called from any thread.
class captured_calls {
 public:
  using communicators = std::vector<std::shared_ptr<captured_communicator>>;

  static captured_calls& instance() {
    static captured_calls calls;
    return calls;
  }
  void add(const std::shared_ptr<captured_communicator>& communicator) {
    const std::lock_guard lock(m_mutex);
    if (m_communicators.empty() || m_communicators.back() != communicator)
      m_communicators.push_back(communicator);
  }
  // Returns the communicators of the calls since the previous take().
  communicators take() {
    const std::lock_guard lock(m_mutex);
    return std::exchange(m_communicators, {});
  }

 private:
  std::mutex m_mutex;
  communicators m_communicators;
};

}  // namespace isthmus::torch_backend
