// Each collective twice: called directly on NCCL, and through the C API of Isthmus. Both use the same buffers,
// stream and shapes, so that the difference is Isthmus.
#pragma once

#include <cuda_runtime_api.h>
#include <isthmus/isthmus.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "nccl/api.hpp"

namespace gpu_bench {

// The resources of one rank.
struct rank_state {
  int rank = 0, size = 1, device = 0;
  cudaStream_t stream = nullptr;
  isthmus_communicator communicator = nullptr;
  isthmus::nccl::native_comm raw = nullptr;
  const isthmus::nccl::native_functions* native = nullptr;
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::byte* byte = nullptr;  // for raw barriers
};

struct bench_case {
  isthmus_collective collective;
  const char* name;
  std::uint64_t bytes;  // as defined for the collective in docs/internals/benchmarks.md
};

// All collectives of the collective table; send and recv appear once, as a ring of pairs.
std::vector<bench_case> cases(std::uint64_t bytes);

// Bytes of float32 that the case writes on a rank; 0 if it writes none.
std::uint64_t output_bytes(const bench_case& test_case, const rank_state& rank);
std::uint64_t largest_send(std::uint64_t bytes, int size);
std::uint64_t largest_recv(std::uint64_t bytes, int size);

// One prepared call that can be repeated. Returns 0 or the code of the library. Lifetime: `rank`
// must outlive it.
class nccl_call_pair {
 public:
  nccl_call_pair(const bench_case& test_case, const rank_state& rank);
  int raw() const { return m_raw(); }
  int isthmus() const { return m_isthmus(); }
  const isthmus_operation& operation() const { return m_operation; }

 private:
  std::vector<std::uint64_t> m_counts, m_displs;
  isthmus_operation m_operation{};
  std::function<int()> m_raw, m_isthmus;
};

}  // namespace gpu_bench
