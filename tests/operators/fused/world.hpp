// The ranks of a test of fused operators (topology/test_ranks.hpp): 3 on the host, one for each device elsewhere, unless
// --ranks says otherwise.
#pragma once

#include <isthmus/fused.h>
#include <isthmus/memory.h>

#include <cstdint>

#include "place.hpp"
#include "topology/test_ranks.hpp"

namespace fused_test {

struct member : ::topology::test_rank {
  explicit member(const ::topology::test_rank& made) : ::topology::test_rank(made), stream(create_stream(made.device)) {}
  void enter() const { use_device(device); }
  void leave() { destroy_stream(stream); }

  void* stream;
};

using test_ranks = ::topology::test_ranks<member>;
using ::topology::last_error_text;

// Another one at every call, the same on all ranks that ask equally often from one thread.
inline std::uint64_t next_seed() {
  static std::uint64_t seed = 1000;
  return seed += 1000;
}

// The calling thread's latest failure.
inline isthmus_error_info last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return info;
}

}  // namespace fused_test
