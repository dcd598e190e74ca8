#include <cstdio>

#include "copy_engine_timer.hpp"
#include "harness/document.hpp"

namespace copy_bench {
namespace {

int calls_for(const shape& what) {
  return what.bytes <= (256 << 10) ? 48 : what.bytes <= (4 << 20) ? 16 : what.bytes <= (64 << 20) ? 6 : 3;
}

// What one provider's calls took and what they were.
struct result {
  const provider* by;
  captured graph{};  // rank 0's
  std::uint64_t wrong = 0;
  std::vector<double> stream_us{}, graph_us{};

  // Nothing but sums needs a kernel, and these one for each piece.
  bool broken(const shape& what) const {
    return wrong != 0 || (by->name == "isthmus" && (graph.kernels > 0) != what.reduces());
  }
};

// In a thread of its own for every rank; rank 0 notes.
void measure_rank(const timer& timer, const shape& what, int samples, int rank, std::vector<result>& results) {
  const int calls = calls_for(what);
  std::vector<captured> own;
  for (result& one : results) {
    const std::uint64_t wrong = timer.wrong_words(*one.by, what, rank);
    own.push_back(timer.capture(*one.by, what, rank, calls));
    timer.graph_us(own.back(), rank, calls);  // warms up
    if (rank == 0) one.wrong = wrong, one.graph = own.back();
  }
  for (int sample = 0; sample < samples; ++sample)
    for (std::size_t turn = 0; turn < results.size(); ++turn) {
      const std::size_t which = (turn + static_cast<std::size_t>(sample)) % results.size();
      result& one = results[which];
      const double in_graph = timer.graph_us(own[which], rank, calls);
      const double alone = timer.stream_us(*one.by, what, rank, calls);
      if (rank == 0) one.graph_us.push_back(in_graph), one.stream_us.push_back(alone);
    }
  for (const captured& one : own) check(cudaGraphExecDestroy(one.graph));
}

}  // namespace

nlohmann::json measure_alone(const timer& timer, const shape& what, int samples, bool& broken) {
  std::vector<result> results;
  for (const provider& by : timer.all().providers())
    if (by.runs(what)) results.push_back({&by});
  timer.all().each([&](int rank) { measure_rank(timer, what, samples, rank, results); });
  nlohmann::json records = nlohmann::json::array();
  std::printf("%-19s %9llu", what.name().c_str(), static_cast<unsigned long long>(what.bytes));
  const int calls_in_graph = calls_for(what) + 2;
  for (const result& one : results) {
    if (one.broken(what)) {
      broken = true;
      std::printf("WRONG: %s by %s of %llu bytes: %llu wrong words, %d kernels in the graph\n",
                  what.name().c_str(), one.by->backend.c_str(), static_cast<unsigned long long>(what.bytes),
                  static_cast<unsigned long long>(one.wrong), one.graph.kernels);
    }
    for (const bool in_graph : {false, true}) {
      nlohmann::json line = record(*one.by, what, timer.all().size(), in_graph ? "graph" : "stream",
                                   in_graph ? one.graph_us : one.stream_us);
      line["kernels_per_call"] = static_cast<double>(one.graph.kernels) / calls_in_graph;
      line["copies_per_call"] = static_cast<double>(one.graph.copies) / calls_in_graph;
      line["wrong"] = one.wrong;
      records.push_back(std::move(line));
    }
    std::printf(" | %s%8.2f %8.2f", what.reduces() ? (one.by->label() + ' ').c_str() : "",
                bench::median(one.stream_us), bench::median(one.graph_us));
  }
  std::printf("\n");
  std::fflush(stdout);
  return records;
}

}  // namespace copy_bench
