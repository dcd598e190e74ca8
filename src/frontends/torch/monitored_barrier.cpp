#include "monitored_barrier.hpp"

#include <algorithm>
#include <vector>

#include "failure/wait.hpp"

namespace isthmus::torch_backend {

using std::chrono::milliseconds;

void monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key_prefix,
                       const tasks::rank_position& self, milliseconds timeout, bool wait_all_ranks) {
  const auto own_store = store->clone();
  const auto wait_for_rank = [&](int rank, milliseconds limit) {
    return poll_until([&] { return own_store->check({key_prefix + std::to_string(rank)}); },
                      deadline_after(limit), milliseconds(1));
  };
  const std::vector<uint8_t> arrival_value{1};
  if (self.rank != 0) {
    own_store->set(key_prefix + std::to_string(self.rank), arrival_value);
    if (!wait_for_rank(0, timeout))
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: monitored_barrier: rank ", self.rank, " waited ", timeout.count(),
                               " ms for rank 0 to report that all ranks arrived"));
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string missing;
  for (int rank = 1; rank < self.size; ++rank) {
    const auto remaining =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (wait_for_rank(rank, std::max(remaining, milliseconds(0)))) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: monitored_barrier: ranks that did not arrive within ",
                                               timeout.count(), " ms: ", missing));
  own_store->set(key_prefix + "0", arrival_value);
}

}  // namespace isthmus::torch_backend
