// Moving collectives and reduce_scatter by NCCL, by NCCL's copy-engine mode and by Isthmus' copy engines: the
// same shapes on the same contents, a thread a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/threads.hpp"
#include "nccl_library.hpp"

namespace copy_bench {

struct call_shape {
  isthmus_collective
      collective;       // allgather, alltoall, broadcast (from rank 0), or reduce_scatter: float32 sums
  bool in_place;        // allgather only
  std::uint64_t bytes;  // allgather: what a rank contributes; else a rank's whole buffer

  std::string name() const;
  bool reduces() const { return collective == ISTHMUS_REDUCE_SCATTER; }
  std::uint64_t block(int size) const;  // bytes from one rank to another
  std::uint64_t output(int size) const;
  double bytes_in(
      int size) const;  // that a rank gets from its peers; a broadcast's root gets as much as it sends
};

struct rank_buffers {
  std::byte* send = nullptr;  // shape.bytes
  std::byte* recv = nullptr;  // as many for each rank
};

// An algorithm of the backend with options of [backend.copy_engine] that are not the defaults.
struct algorithm_variant {
  std::string algorithm, options;
};

// One way to run a shape on every rank, with buffers of its own kind.
struct call_provider {
  std::string name, backend;  // as in records
  std::string label() const { return (name == "isthmus" ? backend : name) + (options.empty() ? "" : " *"); }
  std::function<void(const call_shape&, int rank, cudaStream_t)> enqueue;
  std::vector<rank_buffers> buffers;  // by rank
  std::string options;                // of Isthmus' configuration, where they are not the defaults

  // Sums go through the transit area only, and NCCL's copy-engine mode does what NCCL does.
  bool runs(const call_shape& shape) const {
    return !shape.reduces() || name == "nccl" || backend == "copy_engine:staged";
  }
};

using gpu_bench::check;

// Communicators of one backend, ranks of this process on devices `first` and following.
std::vector<isthmus_communicator> communicators(int first, int size, const std::string& use,
                                                const std::string& options);

// All ranks of this process; a device each.
class device_ranks {
 public:
  device_ranks(int size, std::uint64_t largest, const std::vector<algorithm_variant>& variants);

  int size() const { return m_size; }
  int nccl_version();
  const std::vector<call_provider>& providers() const { return m_providers; }

  // Runs `work` for every rank in a thread of its own with its device current.
  void each(const std::function<void(int rank)>& work);
  void meet(int rank) const { m_threads[rank].barrier(); }
  // The largest of what the ranks give; every rank calls it.
  double slowest(int rank, double value) const { return m_threads[rank].slowest(value); }

  // Words of the output that are not what the peers sent, or further from the sum of it than the roundings of
  // any order allow; of the first and last 256 KiB of every block. In a thread of `each`.
  std::uint64_t count_wrong(const call_provider& provider, const call_shape& shape, int rank, cudaStream_t stream);

 private:
  struct nccl_functions;
  void add_nccl();
  void add_isthmus(const algorithm_variant& shape);
  std::uint64_t count_wrong_sums(const call_provider& provider, const call_shape& shape, int rank, std::uint64_t first,
                           std::uint64_t bytes) const;
  void call_nccl(ncclComm_t communicator, const rank_buffers& buffers, const call_shape& shape, int rank,
                 cudaStream_t stream);

  int m_size;
  std::uint64_t m_largest;
  bench::thread_ranks m_threads;
  std::shared_ptr<nccl_functions> m_nccl;
  std::vector<ncclComm_t> m_plain, m_zero;
  std::vector<std::vector<isthmus_communicator>> m_communicators;
  std::vector<call_provider> m_providers;
};

}  // namespace copy_bench
