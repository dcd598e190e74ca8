#include "threshold_comparison.hpp"

#include <cstdlib>
#include <isthmus/mpi.hpp>
#include <stdexcept>

#include "harness/clock.hpp"
#include "harness/explain.hpp"
#include "harness/mpi_library.hpp"
#include "harness/mpi_team.hpp"

namespace gpu_bench {
namespace {

int rank_in_world() {
  int rank = 0;
  bench::check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

}  // namespace

using bench::check_mpi;

threshold_comparison::~threshold_comparison() { MPI_Barrier(MPI_COMM_WORLD); }

threshold_comparison::threshold_comparison(std::uint64_t largest, int samples)
    : m_team(bench::create_mpi_team(120)), m_self(m_team, rank_in_world()), m_samples(samples) {
  bench::nccl_unique_id id{};
  if (rank() == 0) id = m_nccl.unique_id();
  m_team.share(id);
  m_raw = m_nccl.join(id, rank(), size());
  const std::uint64_t recv_bytes = largest * static_cast<std::uint64_t>(size());
  check(cudaMalloc(reinterpret_cast<void**>(&m_buffers.send), largest));
  check(cudaMalloc(reinterpret_cast<void**>(&m_buffers.recv), recv_bytes));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_buffers.send), largest, 0));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_buffers.recv), recv_bytes, 0));
  fill_inputs(m_buffers.send, largest, rank());
}

isthmus_communicator threshold_comparison::create_communicator(const std::string& rules) const {
  // The environment is a separate configuration layer; it is the same on all ranks.
  if (rules.empty())
    unsetenv("ISTHMUS_RULE");
  else
    setenv("ISTHMUS_RULE", rules.c_str(), 1);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_CUDA, rank()};
  options.timeout_s = 60;
  return isthmus::mpi::create(MPI_COMM_WORLD, &options);
}

device_call threshold_comparison::until_idle(device_call call, std::string backend) const {
  call.backend = std::move(backend);
  call.mode = "stream";
  call.run = [this, enqueue = std::move(call.run)] {
    enqueue();
    check(cudaStreamSynchronize(m_self.stream()));
  };
  return call;
}

device_call threshold_comparison::isthmus_contender(const bench_case& test_case,
                                                    isthmus_communicator communicator) const {
  const prepared_operation operation(test_case, rank(), size(), m_buffers, m_self.stream());
  return until_idle(make_isthmus_call(m_self, test_case, {m_buffers}, {communicator}),
                    bench::selected_backend(communicator, operation.get()));
}

device_call threshold_comparison::nccl_contender(const bench_case& test_case) const {
  return until_idle(make_nccl_call(m_self, test_case, {m_buffers}, m_nccl, {m_raw}), "");
}

void threshold_comparison::mpi_call(const bench_case& test_case, const void* send, void* recv) const {
  const auto all = static_cast<int>(test_case.bytes / sizeof(float));
  const int block = all / size();
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (test_case.collective) {
    case ISTHMUS_ALLREDUCE: return check_mpi(MPI_Allreduce(send, recv, all, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_REDUCE: return check_mpi(MPI_Reduce(send, recv, all, MPI_FLOAT, MPI_SUM, 0, world));
    case ISTHMUS_BROADCAST:
      return check_mpi(MPI_Bcast(rank() == 0 ? const_cast<void*>(send) : recv, all, MPI_FLOAT, 0, world));
    case ISTHMUS_ALLGATHER: return check_mpi(MPI_Allgather(send, all, MPI_FLOAT, recv, all, MPI_FLOAT, world));
    case ISTHMUS_REDUCE_SCATTER:
      return check_mpi(MPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_ALLTOALL:
      return check_mpi(MPI_Alltoall(send, block, MPI_FLOAT, recv, block, MPI_FLOAT, world));
    default: throw std::runtime_error("gpu_bench has no MPI form of this collective");
  }
}

// As in a careful program: pinned memory, copies on the stream, no unnecessary wait.
device_call threshold_comparison::mpi_contender(const bench_case& test_case, bool direct) const {
  const bool is_broadcast = test_case.collective == ISTHMUS_BROADCAST;
  const bool sends = !is_broadcast || rank() == 0;
  // The root of MPI_Bcast has one buffer, so nothing is copied back.
  const std::uint64_t out = is_broadcast && rank() == 0 ? 0 : test_case.output_bytes(rank(), size());
  const auto run = [this, test_case, direct, sends, out] {
    if (direct) return mpi_call(test_case, m_buffers.send, m_buffers.recv);
    if (sends)
      check(cudaMemcpyAsync(m_host_buffers.send, m_buffers.send, test_case.bytes, cudaMemcpyDeviceToHost,
                            m_self.stream()));
    check(cudaStreamSynchronize(m_self.stream()));
    mpi_call(test_case, m_host_buffers.send, m_host_buffers.recv);
    if (out == 0) return;
    check(cudaMemcpyAsync(m_buffers.recv, m_host_buffers.recv, out, cudaMemcpyHostToDevice, m_self.stream()));
    check(cudaStreamSynchronize(m_self.stream()));
  };
  return {{bench::mpi_family(), "", direct ? "gpu_aware" : "staged", run}, test_case, {m_buffers}};
}

// MPI leaves the caches full of its copies and the device idle, so the next NCCL call took up to 1.5 times as
// long on 2 H200. Each contender therefore makes its calls in a row, and the first does not count.
void threshold_comparison::time(std::vector<device_call>& contenders) const {
  const std::uint64_t bytes = contenders.front().test_case.bytes;
  const int calls = bytes <= (64 << 10) ? 20 : bytes <= (4 << 20) ? 6 : 3;
  bench::interleave(contenders.size(), 1, m_samples, [&](std::size_t i, int round) {
    std::vector<double> us;
    for (int call = -1; call < calls; ++call) {
      check_mpi(MPI_Barrier(MPI_COMM_WORLD));
      const std::uint64_t start = bench::steady_ns();
      contenders[i].run();
      if (call >= 0) us.push_back(static_cast<double>(bench::steady_ns() - start) / 1e3);
    }
    const double slowest = m_self.slowest(bench::median(us));
    if (round >= 0) contenders[i].us.push_back(slowest);
  });
}

}  // namespace gpu_bench
