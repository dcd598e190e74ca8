// All variants of an allreduce on the same buffers, interleaved: default and symmetric kernels of NCCL,
// and the peer-memory kernels of Isthmus, by rules and as called by tensor parallelism. One host thread
// drives all devices.
#pragma once

#include <isthmus/tensor_parallel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nccl_library.hpp"

namespace p2p_bench {

using gpu_bench::check;

struct nccl_functions : gpu_bench::nccl_library {
  decltype(&ncclCommInitAll) init_all = symbol<decltype(&ncclCommInitAll)>("ncclCommInitAll");
  decltype(&ncclAllReduce) all_reduce = symbol<decltype(&ncclAllReduce)>("ncclAllReduce");
  decltype(&ncclGroupStart) group_start = symbol<decltype(&ncclGroupStart)>("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = symbol<decltype(&ncclGroupEnd)>("ncclGroupEnd");
  decltype(&ncclMemAlloc) mem_alloc = symbol<decltype(&ncclMemAlloc)>("ncclMemAlloc");
  decltype(&ncclGetVersion) get_version = symbol<decltype(&ncclGetVersion)>("ncclGetVersion");
  decltype(&ncclCommWindowRegister) window_register =
      symbol<decltype(&ncclCommWindowRegister)>("ncclCommWindowRegister");
};

struct rank_state {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  void *send = nullptr, *recv = nullptr;  // from ncclMemAlloc; windows of `symmetric` only
  ncclComm_t plain = nullptr, symmetric = nullptr;
};

struct type_info {
  isthmus_datatype type;
  ncclDataType_t nccl;
  const char* name;
  std::size_t bytes;
};
inline constexpr type_info types[] = {{ISTHMUS_FLOAT32, ncclFloat32, "float32", 4},
                                      {ISTHMUS_FLOAT16, ncclFloat16, "float16", 2},
                                      {ISTHMUS_BFLOAT16, ncclBfloat16, "bfloat16", 2}};

struct allreduce_provider {
  std::string name, backend, mode;
  std::function<void(std::uint64_t count, const type_info&)> call;  // on all ranks
  bool float32_only = false;
  std::uint64_t from_bytes = 0;
  bool in_place() const { return mode == "in_place"; }
};

// Lifetime: ends with the comparison, which owns the streams.
using tensor_parallel_handle =
    std::unique_ptr<isthmus_tensor_parallel_impl, decltype(&isthmus_tensor_parallel_destroy)>;

class allreduce_comparison {
 public:
  allreduce_comparison(int ranks, std::uint64_t largest);
  std::vector<allreduce_provider> providers();
  nlohmann::json run(std::uint64_t bytes, const type_info& type, int samples);
  std::string nccl_version() const;
  const std::vector<rank_state>& ranks() const { return m_ranks; }
  int size() const { return static_cast<int>(m_ranks.size()); }

 private:
  std::vector<isthmus_communicator> communicators(const char* rules);
  tensor_parallel_handle tensor_parallel(const char* algorithm);
  void allreduce_in_place(const tensor_parallel_handle& handle, std::uint64_t count, const type_info& type);
  void prepare(const allreduce_provider& provider, std::uint64_t bytes);
  std::uint64_t count_wrong(const allreduce_provider& provider, std::uint64_t count, const type_info& type);
  std::vector<cudaGraphExec_t> capture(const allreduce_provider& provider, std::uint64_t count,
                                       const type_info& type, int calls);
  double sample(const allreduce_provider& provider, std::uint64_t bytes,
                const std::vector<cudaGraphExec_t>& graphs, int calls);
  void nccl(bool symmetric, std::uint64_t count, const type_info& type);
  void isthmus(const std::vector<isthmus_communicator>& group, std::uint64_t count, const type_info& type);
  nlohmann::json record(const allreduce_provider& provider, std::uint64_t bytes, const type_info& type,
                        const std::vector<double>& us, std::uint64_t wrong);
  std::string backend_of(isthmus_communicator communicator, std::uint64_t count, const type_info& type);

  std::vector<rank_state> m_ranks;
  std::uint64_t m_largest;
  nccl_functions m_nccl;
  std::vector<isthmus_communicator> m_exact, m_bf16;
  tensor_parallel_handle m_staged_handle{nullptr, isthmus_tensor_parallel_destroy},
      m_zero_copy_handle{nullptr, isthmus_tensor_parallel_destroy};
};

}  // namespace p2p_bench
