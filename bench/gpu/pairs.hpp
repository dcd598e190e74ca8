// Each collective twice: as a program calls NCCL itself, and through Isthmus' C API. Same buffers, same
// stream, same shapes, so that the difference is Isthmus.
#pragma once

#include <cuda_runtime_api.h>
#include <isthmus/isthmus.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "backends/nccl_family/native_api.hpp"

namespace gpu_bench {

// What one rank owns.
struct rank_state {
  int rank = 0, size = 1, device = 0;
  cudaStream_t stream = nullptr;
  isthmus_communicator communicator = nullptr;
  isthmus::nccl_family::native_comm raw = nullptr;
  const isthmus::nccl_family::native_functions* native = nullptr;
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::byte* byte = nullptr;  // for raw barriers
};

struct bench_case {
  isthmus_collective collective;
  const char* name;
  std::uint64_t bytes;  // as docs/benchmarks.md defines it for the collective
};

// All collectives of THE TABLE; send and recv appear once, as a ring of pairs.
std::vector<bench_case> cases(std::uint64_t bytes);

// The bytes that the case writes on a rank (0 where none), all float32.
std::uint64_t output_bytes(const bench_case& test_case, const rank_state& rank);
std::uint64_t largest_send(std::uint64_t bytes, int size);
std::uint64_t largest_recv(std::uint64_t bytes, int size);

// One call, ready to be repeated; returns 0 or the library's code. `rank` outlives it.
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
