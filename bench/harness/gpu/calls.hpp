// Prepared calls of a collective on devices: directly on NCCL, or through the C API of Isthmus, with the same
// buffers, streams and shapes.
#pragma once

#include <string>
#include <vector>

#include "device.hpp"
#include "harness/methods.hpp"
#include "harness/patterns.hpp"
#include "oracle/movement.hpp"
#include "oracle/number.hpp"

namespace gpu_bench {

struct bench_case {
  isthmus_collective collective;
  std::uint64_t bytes;  // as defined for the collective in docs/internals/benchmarks.md
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  bool in_place = false;  // allreduce and allgather only

  std::string name() const { return isthmus_collective_name(collective); }
  bench::measured_operation operation(int size) const {
    return {name(), isthmus_datatype_name(datatype), bytes, size};
  }
  // In place, every call reduces the previous result.
  bool accumulates() const { return in_place && bench::reduces(collective); }
  // With equal blocks of a multiple of 4 bytes; root is rank 0, and the peer of a send the next rank.
  oracle::operation_shape shape(int size) const;
  std::uint64_t output_bytes(int rank, int size) const;
};

// All collectives of the collective table; send and recv appear once, as a ring of pairs.
std::vector<bench_case> cases(std::uint64_t bytes);

// One implementation of a case on the ranks of one host thread. `run` enqueues a call on their streams.
struct device_call : bench::method {
  bench_case test_case;
  std::vector<rank_buffers> buffers;  // one for each lane of the thread
  double wire_error = 0;              // additional error bound, relative to the sum of the magnitudes
};

// The arguments of the C API for a call of one rank. Lifetime: m_counts must outlive the operation.
class prepared_operation {
 public:
  prepared_operation(const bench_case& test_case, int rank, int size, const rank_buffers& buffers,
                     cudaStream_t stream);
  prepared_operation(const prepared_operation&) = delete;
  prepared_operation& operator=(const prepared_operation&) = delete;
  const isthmus_operation& get() const { return m_operation; }
  void enqueue(isthmus_communicator communicator) const;

 private:
  int m_rank, m_size;
  std::vector<std::uint64_t> m_counts, m_displs;
  isthmus_operation m_operation{};
};

// `communicators` and `buffers`: one for each lane. Lifetime: thread and library must outlive the call.
device_call make_nccl_call(const device_thread& thread, const bench_case& test_case,
                           std::vector<rank_buffers> buffers, const bench::nccl_library& nccl,
                           std::vector<bench::nccl_comm> communicators);
device_call make_isthmus_call(const device_thread& thread, const bench_case& test_case,
                              std::vector<rank_buffers> buffers,
                              std::vector<isthmus_communicator> communicators);

}  // namespace gpu_bench
