#include "monitored_barrier.hpp"

#include <algorithm>
#include <thread>
#include <vector>

namespace isthmus::torch_backend {

using std::chrono::milliseconds;

void monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& round,
                       const tasks::member& who, milliseconds timeout, bool wait_all_ranks) {
  const auto shared = store->clone();
  const auto come = [&](int rank, milliseconds bound) {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    while (!shared->check({round + std::to_string(rank)})) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  };
  const std::vector<uint8_t> here{1};
  if (who.rank != 0) {
    shared->set(round + std::to_string(who.rank), here);
    if (!come(0, timeout))
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: monitored_barrier: rank ", who.rank, " waited ", timeout.count(),
                               " ms for rank 0 to report that all ranks came"));
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string missing;
  for (int rank = 1; rank < who.size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (come(rank, std::max(left, milliseconds(0)))) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: monitored_barrier: ranks that did not come within ",
                                               timeout.count(), " ms: ", missing));
  shared->set(round + "0", here);
}

}  // namespace isthmus::torch_backend
