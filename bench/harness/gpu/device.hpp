// The CUDA devices of a measurement, the host threads that drive them, and their communicators and buffers. Rank
// r has device r.
#pragma once

#include <cuda_runtime_api.h>

#include <isthmus/error.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/nccl.hpp"
#include "harness/threads.hpp"

namespace gpu_bench {

// The first failure ends the program, because no number after it is meaningful.
inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
using isthmus::detail::check;

inline double elapsed_us(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms) * 1e3;
}

struct rank_buffers {
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

// One rank of a host thread.
struct device_lane {
  int rank;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
};

// A host thread (or process) and the ranks that it drives: usually one, or all if there is no other thread.
class device_thread {
 public:
  device_thread(const bench::team& threads, int first_rank, int ranks = 1) : m_threads(threads) {
    for (int i = 0; i < ranks; ++i) m_lanes.push_back({first_rank + i});
    for (device_lane& lane : m_lanes) {
      check(cudaSetDevice(lane.rank));
      check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
      check(cudaEventCreate(&lane.start));
      check(cudaEventCreate(&lane.stop));
    }
  }
  device_thread(const device_thread&) = delete;  // destroys nothing: it lives until the program ends
  device_thread& operator=(const device_thread&) = delete;

  const std::vector<device_lane>& lanes() const { return m_lanes; }
  int rank() const { return m_lanes.front().rank; }
  cudaStream_t stream() const { return m_lanes.front().stream; }
  int size() const { return m_threads.size() * static_cast<int>(m_lanes.size()); }
  // Only one thread collects results.
  bool is_first() const { return m_threads.rank() == 0; }

  // Calls work(lane, index) with the device of each lane current.
  template <typename Work>
  void each(Work&& work) const {
    for (std::size_t i = 0; i < m_lanes.size(); ++i) {
      if (m_lanes.size() > 1) check(cudaSetDevice(m_lanes[i].rank));
      work(m_lanes[i], i);
    }
  }
  // Blocking: until the streams of this thread are idle.
  void wait() const {
    each([](const device_lane& lane, std::size_t) { check(cudaStreamSynchronize(lane.stream)); });
  }
  // Collective over the threads.
  void sync_threads() const { m_threads.barrier(); }
  double slowest(double value) const { return m_threads.slowest(value); }
  std::uint64_t sum(std::uint64_t value) const { return m_threads.sum(value); }

 private:
  const bench::team& m_threads;
  std::vector<device_lane> m_lanes;
};

// Ranks as threads of this process.
class device_ranks {
 public:
  explicit device_ranks(int size) : m_threads(size), m_devices(static_cast<std::size_t>(size)) {
    m_threads.each([&](const bench::team& thread) {
      m_devices[static_cast<std::size_t>(thread.rank())] =
          std::make_unique<device_thread>(m_threads[thread.rank()], thread.rank());
    });
  }

  int size() const { return static_cast<int>(m_devices.size()); }
  // Runs `work` for every rank in its own thread, with its device current.
  void each(const std::function<void(const device_thread&)>& work) const {
    m_threads.each([&](const bench::team& thread) {
      check(cudaSetDevice(thread.rank()));
      work(*m_devices[static_cast<std::size_t>(thread.rank())]);
    });
  }

 private:
  bench::thread_ranks m_threads;
  std::vector<std::unique_ptr<device_thread>> m_devices;
};

// Communicators of Isthmus whose ranks are in this process, on devices `first` and following, with the rules and
// options of a configuration file.
std::vector<isthmus_communicator> isthmus_communicators(int first, int size, const std::string& configuration);

// Communicators of NCCL for the ranks of this process.
std::vector<bench::nccl_comm> nccl_communicators(const bench::nccl_library& nccl, int size,
                                                 bench::nccl_config* config = nullptr);

// Buffers of every rank, from ncclMemAlloc, with the inputs of the rank (check.hpp). They are symmetric windows of
// the communicators `windows`.
std::vector<rank_buffers> window_buffers(const bench::nccl_library& nccl,
                                         const std::vector<bench::nccl_comm>& windows, std::uint64_t send_bytes,
                                         std::uint64_t recv_bytes);

}  // namespace gpu_bench
