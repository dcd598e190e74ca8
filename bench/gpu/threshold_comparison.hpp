// Each collective over NCCL, over MPI and by Isthmus, on one rank of an MPI job with one device per rank.
#pragma once

#include <isthmus/isthmus.h>

#include <functional>
#include <string>
#include <vector>

#include "bare_nccl.hpp"
#include "check.hpp"
#include "pairs.hpp"

namespace gpu_bench {

void check_mpi(int code);
bool mpi_supports_device_memory();

// One variant of a collective, from the call to the result.
struct contender {
  std::string provider, backend, mode;
  std::function<void()> run;
  std::vector<double> us;  // samples of the slowest rank
};

class threshold_comparison {
 public:
  threshold_comparison(std::uint64_t largest, int samples);
  ~threshold_comparison();

  int rank() const { return m_self.rank; }
  int size() const { return m_self.size; }
  std::string nccl_version() const { return m_nccl.version(); }

  isthmus_communicator create_communicator(const std::string& rules) const;
  // The backend that Isthmus selects for this call, as reported by explain.
  std::string selected_backend(isthmus_communicator communicator, const bench_case& test_case) const;
  contender isthmus_contender(const bench_case& test_case, isthmus_communicator communicator,
                              std::string backend);
  contender nccl_contender(const bench_case& test_case);
  contender mpi_contender(const bench_case& test_case, bool direct);
  // Times all contenders, interleaved. Collective: every rank passes the same contenders.
  void time(std::vector<contender>& contenders, std::uint64_t bytes);
  // Words of `isthmus` that differ from those of NCCL, over all ranks.
  std::uint64_t wrong(const bench_case& test_case, const contender& isthmus, const contender& nccl);

 private:
  void mpi_call(const bench_case& test_case, const void* send, void* recv) const;
  std::vector<std::byte> output(const bench_case& test_case, const contender& entry);

  rank_state m_self;
  int m_samples;
  bare_nccl m_nccl;
  std::byte* m_host_send = nullptr;
  std::byte* m_host_recv = nullptr;
};

}  // namespace gpu_bench
