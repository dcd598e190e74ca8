// The ranks of the tests of fused operators: 3 on the host and one per device otherwise, unless
// --ranks is given.
#pragma once

#include <isthmus/fused.h>
#include <isthmus/memory.h>

#include <cstdint>

#include "place.hpp"
#include "topology/test_ranks.hpp"

namespace fused_test {

struct member : ::topology::test_rank {
  explicit member(const ::topology::test_rank& base_rank)
      : ::topology::test_rank(base_rank), stream(create_stream(base_rank.device)) {}
  void enter() const { use_device(device); }
  void leave() { destroy_stream(stream); }

  void* stream;
};

using test_ranks = ::topology::test_ranks<member>;
using ::topology::last_error_text;

// Returns a new seed in every call. Ranks that call it equally often from one thread get equal seeds.
inline std::uint64_t next_seed() {
  static std::uint64_t seed = 1000;
  return seed += 1000;
}

// The most recent failure of the calling thread.
inline isthmus_error_info last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

}  // namespace fused_test
