// Data movement collectives and reduce_scatter by NCCL, by the copy-engine mode of NCCL and by the copy engines
// of Isthmus, with the same shapes and contents and one thread per rank.
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
  isthmus_collective collective;  // allgather, alltoall, broadcast from rank 0, or reduce_scatter of float32
  bool in_place;                  // allgather only
  std::uint64_t bytes;            // allgather: what a rank contributes; otherwise the whole buffer of a rank

  std::string name() const;
  bool reduces() const { return collective == ISTHMUS_REDUCE_SCATTER; }
  std::uint64_t block(int size) const;  // bytes from one rank to another
  std::uint64_t output(int size) const;
  double bytes_in(int size) const;  // received from peers; for broadcast as much as the root sends
};

struct rank_buffers {
  std::byte* send = nullptr;  // shape.bytes
  std::byte* recv = nullptr;  // size() times as many
};

// An algorithm of the backend with non-default options of [backend.copy_engine].
struct algorithm_variant {
  std::string algorithm, options;
};

// One way to run a shape on every rank, with its own buffers.
struct call_provider {
  std::string name, backend;  // as in the records
  std::string label() const { return (name == "isthmus" ? backend : name) + (options.empty() ? "" : " *"); }
  std::function<void(const call_shape&, int rank, cudaStream_t)> enqueue;
  std::vector<rank_buffers> buffers;  // by rank
  std::string options;                // non-default options of the configuration of Isthmus

  // Among the copy-engine providers, only the staged algorithm of Isthmus reduces. The copy-engine mode of NCCL
  // reduces with the default kernels, so it is not measured again.
  bool runs(const call_shape& shape) const {
    return !shape.reduces() || name == "nccl" || backend == "copy_engine:staged";
  }
};

using gpu_bench::check;

// Communicators of one backend whose ranks are in this process, on devices `first` and following.
std::vector<isthmus_communicator> communicators(int first, int size, const std::string& use,
                                                const std::string& options);

// All ranks, as threads of this process with one device each.
class device_ranks {
 public:
  device_ranks(int size, std::uint64_t largest, const std::vector<algorithm_variant>& variants);

  int size() const { return m_size; }
  int nccl_version();
  const std::vector<call_provider>& providers() const { return m_providers; }

  // Runs `work` for every rank in its own thread, with its device current.
  void each(const std::function<void(int rank)>& work);
  void sync_ranks(int rank) const { m_threads[rank].barrier(); }
  // The maximum over the ranks. Collective.
  double slowest(int rank, double value) const { return m_threads[rank].slowest(value); }

  // Counts wrong words in the first and last 256 KiB of every output block: words that differ from what the
  // peers sent, or sums that exceed the rounding error of any order. Call it in a thread of `each`.
  std::uint64_t count_wrong(const call_provider& provider, const call_shape& shape, int rank,
                            cudaStream_t stream);

 private:
  struct nccl_functions;
  void add_nccl();
  void add_isthmus(const algorithm_variant& variant);
  std::uint64_t count_wrong_sums(const call_provider& provider, const call_shape& shape, int rank,
                                 std::uint64_t first, std::uint64_t bytes) const;
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
