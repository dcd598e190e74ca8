#include <cstdio>

#include "copy_engine_timer.hpp"
#include "harness/document.hpp"

namespace copy_bench {
namespace {

int calls_for(const call_shape& shape) {
  return shape.bytes <= (256 << 10) ? 48 : shape.bytes <= (4 << 20) ? 16 : shape.bytes <= (64 << 20) ? 6 : 3;
}

// Times and properties of the calls of one provider.
struct provider_result {
  const call_provider* provider;
  captured_graph graph{};  // of rank 0
  std::uint64_t wrong = 0;
  std::vector<double> stream_us{}, graph_us{};

  // Only reductions may run kernels, and they must.
  bool has_error(const call_shape& shape) const {
    return wrong != 0 || (provider->name == "isthmus" && (graph.kernels > 0) != shape.reduces());
  }
};

// Runs in one thread per rank; only rank 0 stores results.
void measure_rank(const timer& timer, const call_shape& shape, int samples, int rank,
                  std::vector<provider_result>& results) {
  const int calls = calls_for(shape);
  std::vector<captured_graph> rank_graphs;
  for (provider_result& entry : results) {
    const std::uint64_t wrong = timer.count_wrong_words(*entry.provider, shape, rank);
    rank_graphs.push_back(timer.capture(*entry.provider, shape, rank, calls));
    timer.graph_us(rank_graphs.back(), rank, calls);  // warm-up
    if (rank == 0) entry.wrong = wrong, entry.graph = rank_graphs.back();
  }
  for (int sample = 0; sample < samples; ++sample)
    for (std::size_t position = 0; position < results.size(); ++position) {
      const std::size_t index = (position + static_cast<std::size_t>(sample)) % results.size();
      provider_result& entry = results[index];
      const double in_graph = timer.graph_us(rank_graphs[index], rank, calls);
      const double single_us = timer.stream_us(*entry.provider, shape, rank, calls);
      if (rank == 0) entry.graph_us.push_back(in_graph), entry.stream_us.push_back(single_us);
    }
  for (const captured_graph& entry : rank_graphs) check(cudaGraphExecDestroy(entry.graph));
}

}  // namespace

nlohmann::json measure_alone(const timer& timer, const call_shape& shape, int samples, bool& has_error) {
  std::vector<provider_result> results;
  for (const call_provider& provider : timer.all().providers())
    if (provider.runs(shape)) results.push_back({&provider});
  timer.all().each([&](int rank) { measure_rank(timer, shape, samples, rank, results); });
  nlohmann::json records = nlohmann::json::array();
  std::printf("%-19s %9llu", shape.name().c_str(), static_cast<unsigned long long>(shape.bytes));
  const int calls_in_graph = calls_for(shape) + 2;
  for (const provider_result& entry : results) {
    if (entry.has_error(shape)) {
      has_error = true;
      std::printf("WRONG: %s by %s of %llu bytes: %llu wrong words, %d kernels in the graph\n",
                  shape.name().c_str(), entry.provider->backend.c_str(),
                  static_cast<unsigned long long>(shape.bytes), static_cast<unsigned long long>(entry.wrong),
                  entry.graph.kernels);
    }
    for (const bool in_graph : {false, true}) {
      nlohmann::json line = record(*entry.provider, shape, timer.all().size(), in_graph ? "graph" : "stream",
                                   in_graph ? entry.graph_us : entry.stream_us);
      line["kernels_per_call"] = static_cast<double>(entry.graph.kernels) / calls_in_graph;
      line["copies_per_call"] = static_cast<double>(entry.graph.copies) / calls_in_graph;
      line["wrong"] = entry.wrong;
      records.push_back(std::move(line));
    }
    std::printf(" | %s%8.2f %8.2f", shape.reduces() ? (entry.provider->label() + ' ').c_str() : "",
                bench::median(entry.stream_us), bench::median(entry.graph_us));
  }
  std::printf("\n");
  std::fflush(stdout);
  return records;
}

}  // namespace copy_bench
