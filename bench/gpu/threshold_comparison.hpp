// Each collective over NCCL, over MPI and by Isthmus, on one rank of an MPI job with one device per rank.
#pragma once

#include <string>
#include <vector>

#include "harness/gpu/check.hpp"

namespace gpu_bench {

class threshold_comparison {
 public:
  threshold_comparison(std::uint64_t largest, int samples);
  ~threshold_comparison();

  int rank() const { return m_self.rank(); }
  int size() const { return m_self.size(); }
  std::string nccl_version() const { return m_nccl.version(); }

  isthmus_communicator create_communicator(const std::string& rules) const;
  // Contenders: one variant of a collective each, from the call until the stream is idle.
  device_call isthmus_contender(const bench_case& test_case, isthmus_communicator communicator) const;
  device_call nccl_contender(const bench_case& test_case) const;
  device_call mpi_contender(const bench_case& test_case, bool direct) const;
  // Times all contenders, interleaved. Collective: every rank passes the same contenders.
  void time(std::vector<device_call>& contenders) const;
  // Wrong elements over all ranks.
  std::uint64_t wrong(const device_call& contender) const { return count_wrong(m_self, contender); }

 private:
  device_call until_idle(device_call call, std::string backend) const;
  void mpi_call(const bench_case& test_case, const void* send, void* recv) const;

  bench::team m_team;
  device_thread m_self;
  int m_samples;
  bench::nccl_library m_nccl;
  bench::nccl_comm m_raw = nullptr;
  rank_buffers m_buffers, m_host_buffers;
};

}  // namespace gpu_bench
