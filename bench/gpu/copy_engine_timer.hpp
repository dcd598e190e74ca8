// Times of a provider's calls, one by one on a stream and in captured graphs; the largest over ranks.
#pragma once

#include <cuda.h>

#include <nlohmann/json.hpp>

#include "copy_engine_calls.hpp"

namespace copy_bench {

struct rank_tools {
  cudaStream_t stream = nullptr, compute = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;  // in graphs
  cudaEvent_t compute_start = nullptr, compute_stop = nullptr, overlap_start = nullptr, overlap_stop = nullptr;
};

// A graph of calls. Two calls more come first, which bring the ranks together; only then the time starts.
struct captured_graph {
  cudaGraphExec_t graph = nullptr;
  int kernels = 0, copies = 0;  // nodes in it
};

class timer {
 public:
  explicit timer(device_ranks& all);

  device_ranks& all() const { return m_all; }
  const rank_tools& tools(int rank) const { return m_tools[static_cast<std::size_t>(rank)]; }

  // All of these in a thread of world::each, on every rank.
  captured_graph capture(const call_provider& provider, const call_shape& shape, int rank, int calls) const;
  double graph_us(const captured_graph& captured, int rank, int calls) const;
  double stream_us(const call_provider& provider, const call_shape& shape, int rank, int calls) const;
  // The same on every rank.
  std::uint64_t count_wrong_words(const call_provider& provider, const call_shape& shape, int rank) const;

 private:
  device_ranks& m_all;
  std::vector<rank_tools> m_tools;
  // The driver's own: the runtime has no name for the nodes in which streams write and wait for words.
  decltype(&cuGraphNodeGetType) m_node_type = nullptr;
};

double elapsed_us(cudaEvent_t from, cudaEvent_t to);

// Every record of a shape: `us` of a call.
nlohmann::json record(const call_provider& provider, const call_shape& shape, int ranks, const std::string& mode,
                      const std::vector<double>& us);

// Records of a call alone, on a stream and in a graph, by all providers in turn. Sets `broken` where a result
// was wrong, or a provider that promises copies took kernels.
nlohmann::json measure_alone(const timer& timer, const call_shape& shape, int samples, bool& has_error);

// How much longer 20 matrix products take with each shape of each provider beside them.
nlohmann::json measure_with_products(const timer& timer, const std::vector<call_shape>& shapes, int rounds);

}  // namespace copy_bench
