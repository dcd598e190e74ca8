// A barrier through the group's store that reports the missing ranks.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tasks.hpp"

namespace isthmus::torch_backend {

// Every rank notifies rank 0 and waits for its reply. `key_prefix` must be different for each barrier.
// Errors: throws DistBackendError. On rank 0, the error names the ranks that did not arrive within the timeout:
// all of them if `wait_all_ranks` is set, otherwise the first.
void monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key_prefix,
                       const tasks::rank_position& self, std::chrono::milliseconds timeout,
                       bool wait_all_ranks);

}  // namespace isthmus::torch_backend
