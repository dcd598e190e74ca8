// A barrier through the group's store that says which ranks are missing.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tasks.hpp"

namespace isthmus::torch_backend {

// Every rank tells rank 0, which names those that did not come within the timeout: all of them with
// `wait_all_ranks`, else the first. `round`: prefix of the keys, another one for each barrier. Throws
// DistBackendError.
void monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key_prefix,
                       const tasks::rank_position& self, std::chrono::milliseconds timeout, bool wait_all_ranks);

}  // namespace isthmus::torch_backend
