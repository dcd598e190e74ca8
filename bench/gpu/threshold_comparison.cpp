#include "threshold_comparison.hpp"

#include <isthmus/tools.h>
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <isthmus/mpi.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "harness/document.hpp"

namespace gpu_bench {

using steady = std::chrono::steady_clock;

void check_mpi(int code) {
  if (code != MPI_SUCCESS) throw std::runtime_error("MPI failed with code " + std::to_string(code));
}

bool mpi_supports_device_memory() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

threshold_comparison::~threshold_comparison() { MPI_Barrier(MPI_COMM_WORLD); }

threshold_comparison::threshold_comparison(std::uint64_t largest, int samples) : m_samples(samples) {
  MPI_Comm_rank(MPI_COMM_WORLD, &m_self.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &m_self.size);
  m_self.device = m_self.rank;
  m_self.native = &m_nccl.functions();
  check(cudaSetDevice(m_self.device));
  check(cudaStreamCreateWithFlags(&m_self.stream, cudaStreamNonBlocking));
  isthmus::nccl::native_unique_id id{};
  if (m_self.rank == 0) id = m_nccl.unique_id();
  check_mpi(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
  m_self.raw = m_nccl.join(id, m_self.rank, m_self.size);

  const std::uint64_t send = largest_send(largest, m_self.size), recv = largest_recv(largest, m_self.size);
  check(cudaMalloc(reinterpret_cast<void**>(&m_self.send), send));
  check(cudaMalloc(reinterpret_cast<void**>(&m_self.recv), recv));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_send), send, 0));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_recv), recv, 0));
  // Small random integers: their sums are exact in any order, so all contenders must agree bit by bit.
  auto* const numbers = reinterpret_cast<float*>(m_host_send);
  std::uint64_t state = 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(m_self.rank);
  for (std::uint64_t i = 0; i < send / sizeof(float); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    numbers[i] = static_cast<float>(static_cast<int>(state >> 54) - 512);
  }
  check(cudaMemcpy(m_self.send, m_host_send, send, cudaMemcpyHostToDevice));
}

isthmus_communicator threshold_comparison::create_communicator(const std::string& rules) const {
  // The environment is a separate configuration layer; it is the same on all ranks.
  if (rules.empty())
    unsetenv("ISTHMUS_RULE");
  else
    setenv("ISTHMUS_RULE", rules.c_str(), 1);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_CUDA, m_self.device};
  options.timeout_s = 60;
  return isthmus::mpi::create(MPI_COMM_WORLD, &options);
}

std::string threshold_comparison::selected_backend(isthmus_communicator communicator,
                                                   const bench_case& test_case) const {
  rank_state state = m_self;
  state.communicator = communicator;
  const nccl_call_pair calls(test_case, state);
  std::vector<char> text(1 << 18);
  check(isthmus_communicator_explain(communicator, &calls.operation(), text.data(), text.size(), nullptr));
  return nlohmann::json::parse(text.data()).at("backend").get<std::string>();
}

contender threshold_comparison::isthmus_contender(const bench_case& test_case,
                                                  isthmus_communicator communicator, std::string backend) {
  const auto state = std::make_shared<rank_state>(m_self);
  state->communicator = communicator;
  const auto calls = std::make_shared<nccl_call_pair>(test_case, *state);
  return {"isthmus",
          std::move(backend),
          "stream",
          [this, state, calls] {
            check(static_cast<isthmus_status>(calls->isthmus()));
            check(cudaStreamSynchronize(m_self.stream));
          },
          {}};
}

contender threshold_comparison::nccl_contender(const bench_case& test_case) {
  const auto calls = std::make_shared<nccl_call_pair>(test_case, m_self);
  return {"nccl",
          "",
          "stream",
          [this, calls] {
            if (calls->raw() != 0) throw std::runtime_error("NCCL failed");
            check(cudaStreamSynchronize(m_self.stream));
          },
          {}};
}

void threshold_comparison::mpi_call(const bench_case& test_case, const void* send, void* recv) const {
  const auto all = static_cast<int>(test_case.bytes / sizeof(float));
  const int block = all / m_self.size;
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (test_case.collective) {
    case ISTHMUS_ALLREDUCE: return check_mpi(MPI_Allreduce(send, recv, all, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_REDUCE: return check_mpi(MPI_Reduce(send, recv, all, MPI_FLOAT, MPI_SUM, 0, world));
    case ISTHMUS_BROADCAST:
      return check_mpi(MPI_Bcast(m_self.rank == 0 ? const_cast<void*>(send) : recv, all, MPI_FLOAT, 0, world));
    case ISTHMUS_ALLGATHER: return check_mpi(MPI_Allgather(send, all, MPI_FLOAT, recv, all, MPI_FLOAT, world));
    case ISTHMUS_REDUCE_SCATTER:
      return check_mpi(MPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_ALLTOALL:
      return check_mpi(MPI_Alltoall(send, block, MPI_FLOAT, recv, block, MPI_FLOAT, world));
    default: throw std::runtime_error("threshold_bench has no MPI form of this collective");
  }
}

// As in a careful program: pinned memory, copies on the stream, no unnecessary wait.
contender threshold_comparison::mpi_contender(const bench_case& test_case, bool direct) {
  const bool sends = test_case.collective != ISTHMUS_BROADCAST || m_self.rank == 0;
  std::uint64_t out = output_bytes(test_case, m_self);
  // The root of MPI_Bcast has one buffer, so nothing is copied back.
  if (test_case.collective == ISTHMUS_BROADCAST && m_self.rank == 0) out = 0;
  return {"openmpi",
          "",
          direct ? "gpu_aware" : "staged",
          [this, test_case, direct, sends, out] {
            if (direct) return mpi_call(test_case, m_self.send, m_self.recv);
            if (sends)
              check(cudaMemcpyAsync(m_host_send, m_self.send, test_case.bytes, cudaMemcpyDeviceToHost,
                                    m_self.stream));
            check(cudaStreamSynchronize(m_self.stream));
            mpi_call(test_case, m_host_send, m_host_recv);
            if (out == 0) return;
            check(cudaMemcpyAsync(m_self.recv, m_host_recv, out, cudaMemcpyHostToDevice, m_self.stream));
            check(cudaStreamSynchronize(m_self.stream));
          },
          {}};
}

// MPI leaves the caches full of its copies and the device idle, so the next NCCL call took up to 1.5 times as
// long on 2 H200. Each contender therefore makes its calls in a row, and the first does not count.
void threshold_comparison::time(std::vector<contender>& contenders, std::uint64_t bytes) {
  const int calls = bytes <= (64 << 10) ? 20 : bytes <= (4 << 20) ? 6 : 3;
  for (contender& each : contenders) each.us.clear();
  for (int sample = -1; sample < m_samples; ++sample)
    for (std::size_t position = 0; position < contenders.size(); ++position) {
      contender& current = contenders[(static_cast<std::size_t>(sample + 1) + position) % contenders.size()];
      std::vector<double> us;
      for (int call = -1; call < calls; ++call) {
        check_mpi(MPI_Barrier(MPI_COMM_WORLD));
        const auto start = steady::now();
        current.run();
        if (call >= 0) us.push_back(std::chrono::duration<double, std::micro>(steady::now() - start).count());
      }
      const double median_us = bench::median(us);
      double slowest = 0;
      check_mpi(MPI_Allreduce(&median_us, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
      if (sample >= 0) current.us.push_back(slowest);  // the first sample warms up
    }
}

std::vector<std::byte> threshold_comparison::output(const bench_case& test_case, const contender& entry) {
  const std::uint64_t bytes = output_bytes(test_case, m_self);
  std::vector<std::byte> host(bytes);
  if (bytes != 0) check(cudaMemset(m_self.recv, 0xa5, bytes));
  check(cudaDeviceSynchronize());
  entry.run();
  if (bytes != 0) check(cudaMemcpy(host.data(), m_self.recv, bytes, cudaMemcpyDeviceToHost));
  return host;
}

std::uint64_t threshold_comparison::wrong(const bench_case& test_case, const contender& isthmus,
                                          const contender& nccl) {
  const std::vector<std::byte> reference = output(test_case, nccl), actual = output(test_case, isthmus);
  unsigned long long differing = 0, all = 0;
  for (std::size_t offset = 0; offset + 4 <= actual.size(); offset += 4)
    if (std::memcmp(&actual[offset], &reference[offset], 4) != 0) ++differing;
  check_mpi(MPI_Allreduce(&differing, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD));
  return all;
}

}  // namespace gpu_bench
