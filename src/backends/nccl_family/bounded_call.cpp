#include "bounded_call.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "failure/wait.hpp"

namespace isthmus::nccl_family {
namespace {

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
  while (!state->result && wait_clock::now() < deadline && !(is_canceled && is_canceled()))
    state->result_ready.wait_for(lock, std::chrono::milliseconds(20));
  return state->result;
}

bool wait_until(const std::function<bool()>& is_done, std::chrono::duration<double> timeout,
                const std::function<bool()>& is_canceled) {
  constexpr poll_pause pause{std::chrono::microseconds(20), std::chrono::milliseconds(2)};
  bool has_finished = false;
  const auto has_ended = [&] {
    has_finished = is_done();
    return has_finished || (is_canceled && is_canceled());
  };
  poll_until(has_ended, deadline_after(timeout), pause);
  return has_finished;
}

}  // namespace isthmus::nccl_family
