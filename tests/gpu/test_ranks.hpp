// The ranks of a GPU test: one per GPU, unless --ranks is given (topology/test_ranks.hpp).
#pragma once

#include <memory>
#include <string>

#include "device.hpp"
#include "topology/test_ranks.hpp"

namespace gpu {

struct member : ::topology::test_rank {
  explicit member(const ::topology::test_rank& base)
      : ::topology::test_rank(base), queue(std::make_unique<stream>(base.device)) {}
  void enter() const { use_device(device); }
  void leave() const { queue->synchronize(); }

  std::unique_ptr<stream> queue;
};

using test_ranks = ::topology::test_ranks<member>;
inline std::string last_error() { return ::topology::last_error_text(); }

}  // namespace gpu
