#include "bounded.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace isthmus::xccl {
namespace {

using steady = std::chrono::steady_clock;

// A timeout that is as good as none must not overflow the clock.
steady::time_point deadline_after(std::chrono::duration<double> timeout) {
  constexpr std::chrono::duration<double> longest = std::chrono::hours(24 * 365);
  return steady::now() + std::chrono::duration_cast<steady::duration>(timeout < longest ? timeout : longest);
}

struct answer {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<int> result;
};

}  // namespace

std::optional<int> run_bounded(std::function<int()> call, std::chrono::duration<double> timeout,
                               const std::function<bool()>& cancelled) {
  // Not even begun then: a thread that nobody waits for may outlive the library that it is in.
  if (cancelled && cancelled()) return std::nullopt;
  const auto shared = std::make_shared<answer>();
  std::thread([shared, call = std::move(call)] {
    const int result = call();
    const std::lock_guard lock(shared->mutex);
    shared->result = result;
    shared->changed.notify_all();
  }).detach();
  const auto deadline = deadline_after(timeout);
  std::unique_lock lock(shared->mutex);
  while (!shared->result && steady::now() < deadline && !(cancelled && cancelled()))
    shared->changed.wait_for(lock, std::chrono::milliseconds(20));
  return shared->result;
}

bool wait_until(const std::function<bool()>& done, std::chrono::duration<double> timeout,
                const std::function<bool()>& cancelled) {
  const auto deadline = deadline_after(timeout);
  auto pause = std::chrono::microseconds(20);
  while (!done()) {
    if (steady::now() >= deadline || (cancelled && cancelled())) return false;
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(2)) pause *= 2;
  }
  return true;
}

}  // namespace isthmus::xccl
