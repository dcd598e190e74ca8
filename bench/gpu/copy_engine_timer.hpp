// Times of provider calls, issued directly on a stream and in captured graphs; maximum over ranks.
#pragma once

#include <cuda.h>

#include <nlohmann/json.hpp>

#include "copy_engine_calls.hpp"

namespace copy_bench {

struct rank_tools {
  cudaStream_t stream = nullptr, compute = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;  // recorded inside graphs
  cudaEvent_t compute_start = nullptr, compute_stop = nullptr, overlap_start = nullptr, overlap_stop = nullptr;
};

// A graph of calls. Two additional calls at the start align the ranks before the time starts.
struct captured_graph {
  cudaGraphExec_t graph = nullptr;
  int kernels = 0, copies = 0;  // number of nodes
};

class timer {
 public:
  explicit timer(device_ranks& all);

  device_ranks& all() const { return m_all; }
  const rank_tools& tools(int rank) const { return m_tools[static_cast<std::size_t>(rank)]; }

  // Collective: call these on every rank, in a thread of device_ranks::each.
  captured_graph capture(const call_provider& provider, const call_shape& shape, int rank, int calls) const;
  double graph_us(const captured_graph& captured, int rank, int calls) const;
  double stream_us(const call_provider& provider, const call_shape& shape, int rank, int calls) const;
  // Returns the same value on every rank.
  std::uint64_t count_wrong_words(const call_provider& provider, const call_shape& shape, int rank) const;

 private:
  device_ranks& m_all;
  std::vector<rank_tools> m_tools;
  // From the driver: the runtime has no type for nodes in which streams write or wait for memory words.
  decltype(&cuGraphNodeGetType) m_node_type = nullptr;
};

double elapsed_us(cudaEvent_t from, cudaEvent_t to);

// The record of a shape with the times per call in `us`.
nlohmann::json record(const call_provider& provider, const call_shape& shape, int ranks,
                      const std::string& mode, const std::vector<double>& us);

// Records of calls without concurrent work, on a stream and in a graph, with interleaved providers. Sets
// `has_error` if a result is wrong, or if a provider that promises copies runs kernels.
nlohmann::json measure_alone(const timer& timer, const call_shape& shape, int samples, bool& has_error);

// The slowdown of 20 matrix products by each concurrent shape and provider.
nlohmann::json measure_with_products(const timer& timer, const std::vector<call_shape>& shapes, int rounds);

}  // namespace copy_bench
