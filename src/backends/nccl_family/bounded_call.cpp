#include "bounded_call.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace isthmus::nccl_family {
namespace {

using steady_clock = std::chrono::steady_clock;

// Limits very large timeouts, which would overflow the clock.
steady_clock::time_point deadline_after(std::chrono::duration<double> timeout) {
  constexpr std::chrono::duration<double> max_timeout = std::chrono::hours(24 * 365);
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(timeout < max_timeout ? timeout : max_timeout);
}

struct shared_result {
  std::mutex mutex;
  std::condition_variable result_ready;
  std::optional<int> result;
};

}  // namespace

std::optional<int> run_with_timeout(std::function<int()> function, std::chrono::duration<double> timeout,
                                    const std::function<bool()>& is_canceled) {
  // Do not start the call after a cancellation, because a detached thread can outlive the library whose
  // code it runs.
  if (is_canceled && is_canceled()) return std::nullopt;
  const auto state = std::make_shared<shared_result>();
  std::thread([state, function = std::move(function)] {
    const int result = function();
    const std::lock_guard lock(state->mutex);
    state->result = result;
    state->result_ready.notify_all();
  }).detach();
  const auto deadline = deadline_after(timeout);
  std::unique_lock lock(state->mutex);
  while (!state->result && steady_clock::now() < deadline && !(is_canceled && is_canceled()))
    state->result_ready.wait_for(lock, std::chrono::milliseconds(20));
  return state->result;
}

bool wait_until(const std::function<bool()>& is_done, std::chrono::duration<double> timeout,
                const std::function<bool()>& is_canceled) {
  const auto deadline = deadline_after(timeout);
  auto pause = std::chrono::microseconds(20);
  while (!is_done()) {
    if (steady_clock::now() >= deadline || (is_canceled && is_canceled())) return false;
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(2)) pause *= 2;
  }
  return true;
}

}  // namespace isthmus::nccl_family
