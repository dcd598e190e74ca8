// Data movement collectives and reduce_scatter by NCCL, by the copy-engine mode of NCCL and by the copy engines of
// Isthmus, with the same shapes and contents and one thread per rank.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/gpu/timer.hpp"

namespace gpu_bench {

// ncclConfig_t as of version 2.27, up to the policy that makes NCCL use copy engines (since 2.28).
struct nccl_copy_engine_config {
  std::size_t size = sizeof(nccl_copy_engine_config);
  unsigned magic = 0xcafebeef, version = 22700;
  int blocking = 1, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN, traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = 2;  // NCCL_CTA_POLICY_ZERO
};
// An algorithm of the backend with non-default options of [backend.copy_engine].
struct algorithm_variant {
  std::string algorithm, options;
};

// One way to run a case on every rank, with its own buffers and communicators, by rank: of NCCL or of Isthmus.
struct copy_provider {
  std::string name, backend, options;
  std::vector<rank_buffers> buffers;
  std::vector<bench::nccl_comm> nccl;
  std::vector<isthmus_communicator> isthmus;
  std::vector<std::uint32_t*> words{};  // of bare copies

  // Copies between the devices, by default without any synchronization between ranks.
  bool is_bare() const { return name == "bare_copies"; }
  std::string label() const { return (name == "isthmus" ? backend : name) + (options.empty() ? "" : " *"); }
  // Among the copy-engine providers, only the staged algorithm of Isthmus reduces. The copy-engine mode of NCCL
  // reduces with the default kernels, so it is not measured again.
  bool runs(const bench_case& test_case) const {
    if (is_bare()) return test_case.collective == ISTHMUS_ALLGATHER && test_case.in_place;
    return !bench::reduces(test_case.collective) || name == "nccl" || backend == "copy_engine:staged";
  }
};

class copy_comparison {
 public:
  copy_comparison(int size, std::uint64_t largest, const std::vector<algorithm_variant>& variants);

  // `parts`: of the protocol, a list (copy_engine_bare.cpp).
  void add_bare_copies(const std::string& parts);

  const device_ranks& ranks() const { return m_ranks; }
  std::string nccl_version() const { return m_nccl.version(); }
  const std::vector<copy_provider>& providers() const { return m_providers; }
  device_call make_call(const device_thread& self, const copy_provider& provider,
                        const bench_case& test_case) const;

 private:
  void add_nccl();
  void add_isthmus(const algorithm_variant& variant);

  device_ranks m_ranks;
  std::uint64_t m_largest;
  bench::nccl_library m_nccl;
  std::vector<copy_provider> m_providers;
};

// The copies of one rank for an allgather in place.
device_call make_bare_call(const device_thread& self, const copy_provider& provider,
                           const bench_case& test_case);

// allgather: `bytes` is what a rank contributes; otherwise the whole buffer of a rank. Reductions are of float32,
// everything else of bytes.
bench_case copy_case(isthmus_collective collective, bool in_place, std::uint64_t bytes);
std::string label_of(const bench_case& test_case);

// The record of a case with the times per call in `us`.
nlohmann::json copy_record(const copy_provider& provider, const bench_case& test_case, int ranks,
                           const std::string& mode, const std::vector<double>& us);

// The slowdown of 20 matrix products by each concurrent case and provider.
nlohmann::json measure_with_products(const copy_comparison& comparison,
                                     const std::vector<bench_case>& test_cases, int rounds);

}  // namespace gpu_bench
