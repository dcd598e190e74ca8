// Times of a provider's calls, one by one on a stream and in captured graphs; the largest over ranks.
#pragma once

#include <cuda.h>

#include <nlohmann/json.hpp>

#include "copy_engine_calls.hpp"

namespace copy_bench {

struct rank_tools {
  cudaStream_t stream = nullptr, compute = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;  // in graphs
  cudaEvent_t compute_start = nullptr, compute_stop = nullptr, beside_start = nullptr, beside_stop = nullptr;
};

// A graph of calls. Two calls more come first, which bring the ranks together; only then the time starts.
struct captured {
  cudaGraphExec_t graph = nullptr;
  int kernels = 0, copies = 0;  // nodes in it
};

class timer {
 public:
  explicit timer(world& all);

  world& all() const { return m_all; }
  const rank_tools& tools(int rank) const { return m_tools[static_cast<std::size_t>(rank)]; }

  // All of these in a thread of world::each, on every rank.
  captured capture(const provider& by, const shape& what, int rank, int calls) const;
  double graph_us(const captured& one, int rank, int calls) const;
  double stream_us(const provider& by, const shape& what, int rank, int calls) const;
  // The same on every rank.
  std::uint64_t wrong_words(const provider& by, const shape& what, int rank) const;

 private:
  world& m_all;
  std::vector<rank_tools> m_tools;
  // The driver's own: the runtime has no name for the nodes in which streams write and wait for words.
  decltype(&cuGraphNodeGetType) m_node_type = nullptr;
};

double elapsed_us(cudaEvent_t from, cudaEvent_t to);

// Every record of a shape: `us` of a call.
nlohmann::json record(const provider& by, const shape& what, int ranks, const std::string& mode,
                      const std::vector<double>& us);

// Records of a call alone, on a stream and in a graph, by all providers in turn. Sets `broken` where a result
// was wrong, or a provider that promises copies took kernels.
nlohmann::json measure_alone(const timer& timer, const shape& what, int samples, bool& broken);

// How much longer 20 matrix products take with each shape of each provider beside them.
nlohmann::json measure_beside_products(const timer& timer, const std::vector<shape>& shapes, int rounds);

}  // namespace copy_bench
