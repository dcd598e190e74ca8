// Protection against calls of a native library that hang: the agreement of all ranks before a native communicator is
// created, which detects mismatches, and time limits for calls that can block forever.
#pragma once

#include <isthmus/backend.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <isthmus/plugin.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "failure/wait.hpp"

namespace isthmus::nccl_family {

// ---- agreement ----------------------------------------------------------------------------------------

// The contribution of one rank. Trivially copyable, because it is exchanged as bytes.
template <std::size_t IdBytes>
struct probe {
  std::int32_t version = 0;
  std::int32_t capability = 0;      // major compute capability; 0 if the platform has none
  std::int32_t has_split_comm = 0;  // 1 if a split has already created the native communicator
  char device[32] = {};             // PCI bus id, unique within a machine
  unsigned char id[IdBytes] = {};   // unique id of the native communicator; only that of rank 0 is used
};

// Returns "" if the contributions of all ranks are compatible, otherwise the reason. The result is equal
// on all ranks.
template <std::size_t IdBytes>
std::string find_mismatch(const votes<probe<IdBytes>>& all, const int* node_of, bool may_share_device) {
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].value.version != all[0].value.version)
      return "ranks 0 and " + std::to_string(rank) + " loaded different versions of the library (codes " +
             std::to_string(all[0].value.version) + " and " + std::to_string(all[rank].value.version) + ")";
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (!may_share_device && node_of[a] == node_of[b] && all[a].value.device[0] != '\0' &&
          std::strcmp(all[a].value.device, all[b].value.device) == 0)
        return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " use the same device (" +
               all[a].value.device + "); give each rank its own device";
  return {};
}

// Collective. Gathers the probes of all ranks in `all`. If a rank has no usable library (`reason` is not empty)
// or the probes are not compatible, the backend is UNSUPPORTED on every rank.
template <std::size_t IdBytes>
isthmus_status agree_on_probes(const isthmus_backend_context& context, const char* location, const char* hint,
                               vote<probe<IdBytes>>& local_vote, const std::string& reason,
                               votes<probe<IdBytes>>& all) {
  bool may_share_device = false;
  const std::string option_error = read_flag(context, "share_device", may_share_device);
  if (const std::string& problem = reason.empty() ? option_error : reason; !problem.empty())
    local_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem, hint);
  if (const isthmus_status status = agree(context, location, local_vote, all); status != ISTHMUS_SUCCESS)
    return status;
  const std::string problem = find_mismatch(all, context.node_of, may_share_device);
  if (problem.empty()) return ISTHMUS_SUCCESS;
  return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, location, hint, "%s", problem.c_str());
}

// ---- time limits --------------------------------------------------------------------------------------

// A native call in a thread of its own, which keeps running if it is not waited for. `function` must therefore own
// everything it uses. It must not throw.
class background_call {
 public:
  background_call() = default;  // no call
  explicit background_call(std::function<int()> function) : m_state(std::make_shared<shared_result>()) {
    std::thread([state = m_state, function = std::move(function)] {
      const int result = function();
      const std::lock_guard lock(state->mutex);
      state->result = result;
      state->result_ready.notify_all();
    }).detach();
  }

  // Returns the result of the call. Returns nothing if there is no call, if it has not finished after `timeout`, or if
  // `is_canceled` (optional) returns true.
  std::optional<int> wait(std::chrono::duration<double> timeout,
                          const std::function<bool()>& is_canceled = {}) const {
    if (m_state == nullptr) return std::nullopt;
    const auto deadline = deadline_after(timeout);
    std::unique_lock lock(m_state->mutex);
    while (!m_state->result && wait_clock::now() < deadline && !(is_canceled && is_canceled()))
      m_state->result_ready.wait_for(lock, std::chrono::milliseconds(20));
    return m_state->result;
  }

 private:
  struct shared_result {
    std::mutex mutex;
    std::condition_variable result_ready;
    std::optional<int> result;
  };
  std::shared_ptr<shared_result> m_state;
};

// Runs `function` as a background call and waits for it.
inline std::optional<int> run_with_timeout(std::function<int()> function, std::chrono::duration<double> timeout,
                                           const std::function<bool()>& is_canceled = {}) {
  // Do not start the call after a cancellation, because a detached thread can outlive the library whose
  // code it runs.
  if (is_canceled && is_canceled()) return std::nullopt;
  return background_call(std::move(function)).wait(timeout, is_canceled);
}

// Polls until `is_done` returns true. Returns false if `timeout` expires or `is_canceled` returns true first.
inline bool wait_until(const std::function<bool()>& is_done, std::chrono::duration<double> timeout,
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
