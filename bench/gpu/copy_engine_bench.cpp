// Copies by the devices' DMA engines against NCCL's kernels and NCCL's own copy-engine mode, in one process and
// one run: what a call takes, issued call by call and in a captured graph, and how much 8192^3 bfloat16 matrix
// products beside it slow down. The order of providers rotates; a sample is the maximum over ranks, a figure
// the median over samples. Clocks drift by more than what the products lose, so each of them is compared with
// those without anything beside them just before and just after.
#include <cuda.h>
#include <dlfcn.h>
#include <isthmus/fused.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "copy_engine_calls.hpp"
#include "oracle/inputs.hpp"
#include "statistics.hpp"

namespace copy_bench {
namespace {

using gpu_bench::median;
using gpu_bench::spread;

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

struct companion;

class bench {
 public:
  bench(world& all, int samples);
  nlohmann::json run(const shape& what);
  nlohmann::json beside_products(const std::vector<shape>& shapes, int rounds);
  bool kept_promise() const { return m_kept_promise; }

 private:
  static int calls_for(const shape& what) {
    return what.bytes <= (256 << 10) ? 48 : what.bytes <= (4 << 20) ? 16 : what.bytes <= (64 << 20) ? 6 : 3;
  }
  captured capture(const provider& by, const shape& what, int rank, int calls);
  double graph_us(const captured& one, int rank, int calls);
  double stream_us(const provider& by, const shape& what, int rank, int calls);
  double elapsed_us(cudaEvent_t from, cudaEvent_t to);
  nlohmann::json record(const provider& by, const shape& what) const;
  nlohmann::json records_of(const std::vector<companion>& companions) const;
  void note(const provider& by, const shape& what, std::uint64_t wrong, const captured& graph);

  world& m_all;
  int m_samples;
  bool m_kept_promise = true;
  std::vector<rank_tools> m_tools;
  // The driver's own: the runtime has no name for the nodes in which streams write and wait for words.
  decltype(&cuGraphNodeGetType) m_node_type = nullptr;
};

bench::bench(world& all, int samples)
    : m_all(all), m_samples(samples), m_tools(static_cast<std::size_t>(all.size())) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver != nullptr)
    m_node_type = reinterpret_cast<decltype(m_node_type)>(dlsym(driver, "cuGraphNodeGetType"));
  if (m_node_type == nullptr) throw std::runtime_error("the CUDA driver has no cuGraphNodeGetType");
  m_all.each([&](int rank) {
    rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
    check(cudaStreamCreateWithFlags(&tools.stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&tools.compute, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&tools.start, &tools.stop, &tools.compute_start, &tools.compute_stop,
                               &tools.beside_start, &tools.beside_stop})
      check(cudaEventCreate(event));
  });
}

double bench::elapsed_us(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms) * 1e3;
}

captured bench::capture(const provider& by, const shape& what, int rank, int calls) {
  const rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
  m_all.meet();
  check(cudaStreamBeginCapture(tools.stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < 2; ++i) by.enqueue(what, rank, tools.stream);
    check(cudaEventRecordWithFlags(tools.start, tools.stream, cudaEventRecordExternal));
    for (int i = 0; i < calls; ++i) by.enqueue(what, rank, tools.stream);
    check(cudaEventRecordWithFlags(tools.stop, tools.stream, cudaEventRecordExternal));
  } catch (...) {
    cudaStreamEndCapture(tools.stream, &graph);  // what is released on the way out may not be captured
    throw;
  }
  check(cudaStreamEndCapture(tools.stream, &graph));
  captured made;
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::vector<cudaGraphNode_t> all(nodes);
  check(cudaGraphGetNodes(graph, all.data(), &nodes));
  for (cudaGraphNode_t node : all) {
    CUgraphNodeType type{};
    if (m_node_type(node, &type) != CUDA_SUCCESS) throw std::runtime_error("cuGraphNodeGetType failed");
    made.kernels += type == CU_GRAPH_NODE_TYPE_KERNEL;
    made.copies += type == CU_GRAPH_NODE_TYPE_MEMCPY;
  }
  m_all.meet();  // nothing is instantiated while a stream captures
  check(cudaGraphInstantiate(&made.graph, graph, 0));
  check(cudaGraphDestroy(graph));
  return made;
}

double bench::graph_us(const captured& one, int rank, int calls) {
  const rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
  m_all.meet();
  check(cudaGraphLaunch(one.graph, tools.stream));
  check(cudaStreamSynchronize(tools.stream));
  return m_all.slowest(rank, elapsed_us(tools.start, tools.stop) / calls);
}

double bench::stream_us(const provider& by, const shape& what, int rank, int calls) {
  const rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
  m_all.meet();
  for (int i = 0; i < 2; ++i) by.enqueue(what, rank, tools.stream);
  check(cudaEventRecord(tools.start, tools.stream));
  for (int i = 0; i < calls; ++i) by.enqueue(what, rank, tools.stream);
  check(cudaEventRecord(tools.stop, tools.stream));
  check(cudaStreamSynchronize(tools.stream));
  return m_all.slowest(rank, elapsed_us(tools.start, tools.stop) / calls);
}

nlohmann::json bench::record(const provider& by, const shape& what) const {
  nlohmann::json line = {{"collective", isthmus_collective_name(what.collective)},
                         {"dtype", what.reduces() ? "float32" : "uint8"},
                         {"bytes", what.bytes},
                         {"ranks", m_all.size()},
                         {"in_place", what.in_place},
                         {"provider", by.name},
                         {"backend", by.backend}};
  if (what.reduces()) line["op"] = "sum";
  if (!by.options.empty()) line["options"] = by.options;
  return line;
}

void bench::note(const provider& by, const shape& what, std::uint64_t wrong, const captured& graph) {
  // Nothing but sums needs a kernel, and these one for each piece.
  const bool broken = by.name == "isthmus" && (graph.kernels > 0) != what.reduces();
  if (wrong == 0 && !broken) return;
  m_kept_promise = false;
  std::printf("WRONG: %s by %s of %llu bytes: %llu wrong words, %d kernels in the graph\n", what.name().c_str(),
              by.backend.c_str(), static_cast<unsigned long long>(what.bytes),
              static_cast<unsigned long long>(wrong), graph.kernels);
}

nlohmann::json bench::run(const shape& what) {
  std::vector<const provider*> providers;
  for (const provider& by : m_all.providers())
    if (by.runs(what)) providers.push_back(&by);
  const int calls = calls_for(what);
  std::vector<std::vector<double>> stream(providers.size()), graph(providers.size());
  std::vector<captured> graphs(providers.size());
  std::vector<std::uint64_t> wrong(providers.size());
  m_all.each([&](int rank) {
    std::vector<captured> own;
    for (std::size_t which = 0; which < providers.size(); ++which) {
      const double words = m_all.slowest(
          rank, static_cast<double>(m_all.count_wrong(*providers[which], what, rank,
                                                      m_tools[static_cast<std::size_t>(rank)].stream)));
      own.push_back(capture(*providers[which], what, rank, calls));
      graph_us(own.back(), rank, calls);  // warms up
      if (rank == 0) wrong[which] = static_cast<std::uint64_t>(words), graphs[which] = own.back();
    }
    for (int sample = 0; sample < m_samples; ++sample)
      for (std::size_t turn = 0; turn < providers.size(); ++turn) {
        const std::size_t which = (turn + static_cast<std::size_t>(sample)) % providers.size();
        const double in_graph = graph_us(own[which], rank, calls);
        const double alone = stream_us(*providers[which], what, rank, calls);
        if (rank == 0) graph[which].push_back(in_graph), stream[which].push_back(alone);
      }
    for (const captured& one : own) check(cudaGraphExecDestroy(one.graph));
  });
  nlohmann::json records = nlohmann::json::array();
  std::printf("%-19s %9llu", what.name().c_str(), static_cast<unsigned long long>(what.bytes));
  for (std::size_t which = 0; which < providers.size(); ++which) {
    note(*providers[which], what, wrong[which], graphs[which]);
    for (const bool in_graph : {false, true}) {
      const auto& times = in_graph ? graph[which] : stream[which];
      nlohmann::json line = record(*providers[which], what);
      line["mode"] = in_graph ? "graph" : "stream";
      line["time_us"] = spread(times);
      line["algbw_gbs"] = static_cast<double>(what.bytes) / median(times) / 1e3;
      line["busbw_gbs"] = what.bytes_in(m_all.size()) / median(times) / 1e3;
      line["kernels_per_call"] = static_cast<double>(graphs[which].kernels) / (calls + 2);
      line["copies_per_call"] = static_cast<double>(graphs[which].copies) / (calls + 2);
      line["wrong"] = wrong[which];
      records.push_back(line);
    }
    std::printf(" | %s%8.2f %8.2f", what.reduces() ? (providers[which]->label() + ' ').c_str() : "",
                median(stream[which]), median(graph[which]));
  }
  std::printf("\n");
  std::fflush(stdout);
  return records;
}

// ---- beside matrix products -----------------------------------------------------------------------------

constexpr std::uint64_t side = 8192;
constexpr int products = 20;

// 8192^3 in bfloat16 on one device, by cuBLASLt: a plan of one rank. Random inputs: zeros are faster.
class multiplication {
 public:
  explicit multiplication(int rank) : m_alone(communicators(rank, 1, "copy_engine", "").front()) {
    isthmus_fused_description what{};
    what.struct_bytes = sizeof what;
    what.kind = ISTHMUS_FUSED_ALLGATHER_GEMM;
    what.mode = ISTHMUS_FUSED_SEQUENTIAL;
    what.m = what.n = what.k = side;
    what.input = what.output = ISTHMUS_BFLOAT16;
    check(isthmus_fused_plan_create(m_alone, &what, &m_plan));
    constexpr std::uint64_t bytes = side * side * 2;
    std::vector<std::byte> inputs(16 << 20);
    oracle::fill({ISTHMUS_BFLOAT16, ISTHMUS_SUM, oracle::flavour::ordinary, 5}, rank, 0, inputs);
    for (std::byte** matrix : {&m_a, &m_b, &m_c}) {
      check(cudaMalloc(reinterpret_cast<void**>(matrix), bytes));
      for (std::uint64_t at = 0; at < bytes; at += inputs.size())
        check(cudaMemcpy(*matrix + at, inputs.data(), inputs.size(), cudaMemcpyDefault));
    }
  }
  ~multiplication() {
    isthmus_fused_plan_destroy(m_plan);
    isthmus_communicator_destroy(m_alone);
    for (std::byte* matrix : {m_a, m_b, m_c}) cudaFree(matrix);
  }
  multiplication(const multiplication&) = delete;
  multiplication& operator=(const multiplication&) = delete;

  void enqueue(cudaStream_t stream) {
    isthmus_fused_arguments with{};
    with.struct_bytes = sizeof with;
    with.a = m_a;
    with.b = m_b;
    with.c = m_c;
    with.alpha = 1;
    with.stream = stream;
    check(isthmus_fused_run(m_plan, &with));
  }

 private:
  isthmus_communicator m_alone = nullptr;
  isthmus_fused_plan m_plan = nullptr;
  std::byte *m_a = nullptr, *m_b = nullptr, *m_c = nullptr;
};

constexpr int calls_of_graph = 8;  // and two more that bring the ranks together

struct companion {  // of the products; without a provider: nothing
  const provider* by = nullptr;
  shape what{};
  std::vector<captured> graphs{};  // by rank
  std::uint64_t wrong = 0;
  int launches = 0;                          // of the graph: somewhat longer than the products take
  int timed = 0;                             // of these, behind the first: while the products run
  std::vector<double> ratios{}, us{}, ms{};  // products against their neighbours, a call, the products
};

nlohmann::json bench::beside_products(const std::vector<shape>& shapes, int rounds) {
  std::vector<companion> companions(1);  // the first is nothing against nothing: what the method itself sees
  for (const shape& what : shapes)
    for (const provider& by : m_all.providers())
      if (by.runs(what)) companions.push_back({&by, what});
  for (companion& one : companions) one.graphs.resize(static_cast<std::size_t>(m_all.size()));
  constexpr int calls = calls_of_graph;
  m_all.each([&](int rank) {
    const rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
    multiplication product(rank);
    // Milliseconds of the products; `us` gets those of a call of the companion.
    const auto sample = [&](companion& beside, double* us) {
      int launched = 0;
      for (int attempt = 0; attempt < 7; ++attempt) {
        m_all.meet();
        const auto launch = [&](int i) {
          check(cudaGraphLaunch(beside.graphs[static_cast<std::size_t>(rank)].graph, tools.stream));
          if (i == 0) check(cudaEventRecord(tools.beside_start, tools.stream));
          if (i == beside.timed) check(cudaEventRecord(tools.beside_stop, tools.stream));
        };
        launched = beside.launches;
        if (launched > 0) launch(0);
        check(cudaEventRecord(tools.compute_start, tools.compute));
        for (int i = 0; i < products; ++i) product.enqueue(tools.compute);
        check(cudaEventRecord(tools.compute_stop, tools.compute));
        // The driver takes only so many graphs ahead; then it keeps the host until some have run.
        for (int i = 1; i < launched; ++i) launch(i);
        check(cudaStreamSynchronize(tools.compute));
        const bool covered = beside.launches == 0 || cudaStreamQuery(tools.stream) == cudaErrorNotReady;
        check(cudaStreamSynchronize(tools.stream));
        if (m_all.slowest(rank, covered ? 0 : 1) > 0) {  // the estimate came from a slow moment
          if (rank == 0) beside.launches *= 2;
          continue;
        }
        if (beside.launches > 0)
          *us = m_all.slowest(rank,
                              elapsed_us(tools.beside_start, tools.beside_stop) / (beside.timed * (calls + 2)));
        return m_all.slowest(rank, elapsed_us(tools.compute_start, tools.compute_stop) / 1e3);
      }
      throw std::runtime_error(std::to_string(launched) + " graphs of " + beside.what.name() + " by " +
                               beside.by->label() + " end before the products beside them");
    };
    double us = 0;
    for (int i = 0; i < 3; ++i) sample(companions[0], &us);
    const double alone = sample(companions[0], &us);
    for (companion& one : companions) {
      if (one.by == nullptr) continue;
      // Also because libraries set things up at the first call, which a capture may forbid.
      const double words =
          m_all.slowest(rank, static_cast<double>(m_all.count_wrong(*one.by, one.what, rank, tools.stream)));
      if (rank == 0) one.wrong = static_cast<std::uint64_t>(words);
      const captured made = capture(*one.by, one.what, rank, calls);
      double each = graph_us(made, rank, calls) * (calls + 2);
      for (int i = 0; i < 2; ++i) each = std::min(each, graph_us(made, rank, calls) * (calls + 2));
      one.graphs[static_cast<std::size_t>(rank)] = made;
      if (rank == 0) {
        one.launches = static_cast<int>(std::ceil(1.5 * alone * 1e3 / each)) + 1;
        one.timed = std::max(1, static_cast<int>(0.7 * alone * 1e3 / each) - 1);
      }
      m_all.meet();
    }
    double before = alone;
    for (int round = 0; round < rounds; ++round)
      for (std::size_t turn = 0; turn < companions.size(); ++turn) {
        companion& one = companions[(turn + static_cast<std::size_t>(round)) % companions.size()];
        const double ms = sample(one, &us), after = sample(companions[0], &us);
        if (rank == 0)
          one.ratios.push_back(2 * ms / (before + after)), one.us.push_back(us), one.ms.push_back(ms);
        before = after;
      }
    for (companion& one : companions)
      if (one.by != nullptr) check(cudaGraphExecDestroy(one.graphs[static_cast<std::size_t>(rank)].graph));
  });
  return records_of(companions);
}

nlohmann::json bench::records_of(const std::vector<companion>& companions) const {
  nlohmann::json records = nlohmann::json::array();
  for (const companion& one : companions) {
    const double slowdown = 100 * (median(one.ratios) - 1);
    if (one.by == nullptr) {
      std::printf("products beside nothing: %.2f ms, against themselves %+.2f %%\n", median(one.ms), slowdown);
      continue;
    }
    nlohmann::json line = record(*one.by, one.what);
    line["mode"] = "graph";
    line["beside"] = "20 products 8192x8192x8192 bfloat16";
    line["wrong"] = one.wrong;
    line["gemm_slowdown_pct"] = slowdown;
    line["method_noise_pct"] = 100 * (median(companions[0].ratios) - 1);
    line["gemm_ms"] = spread(one.ms);
    line["calls_beside"] = one.launches * (calls_of_graph + 2);
    line["time_us"] = spread(one.us);
    line["algbw_gbs"] = static_cast<double>(one.what.bytes) / median(one.us) / 1e3;
    line["busbw_gbs"] = one.what.bytes_in(m_all.size()) / median(one.us) / 1e3;
    records.push_back(line);
    std::printf("products beside %-19s %9llu by %-22s %+6.2f %%, %8.1f us a call %s\n", one.what.name().c_str(),
                static_cast<unsigned long long>(one.what.bytes), one.by->label().c_str(), slowdown,
                median(one.us), one.by->options.c_str());
  }
  std::fflush(stdout);
  return records;
}

}  // namespace
}  // namespace copy_bench

int main(int argc, char** argv) try {
  using namespace copy_bench;
  CLI::App app{"Isthmus' copy engines against NCCL"};
  int ranks = 0, samples = 11, rounds = 0;
  std::string out, only;
  std::vector<std::string> variants;
  std::vector<std::uint64_t> sizes{64 << 10, 256 << 10, 1 << 20,  4 << 20,
                                   16 << 20, 32 << 20,  64 << 20, 256 << 20};
  app.add_option("--ranks", ranks, "ranks, one a device (0: all devices)");
  app.add_option("--samples", samples, "samples of each figure")->check(CLI::Range(3, 1000));
  app.add_option("--sizes", sizes, "bytes");
  app.add_option("--only", only, "a collective; default: all of them");
  app.add_option("--variants", variants, "also ALGORITHM:OPTIONS, such as \"push:together_bytes = 0\"");
  app.add_option("--beside-products", rounds, "so many samples beside matrix products, instead of alone")
      ->check(CLI::Range(1, 1000));
  app.add_option("--out", out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  if (ranks == 0 && cudaGetDeviceCount(&ranks) != cudaSuccess) ranks = 0;
  if (ranks < 2) return std::puts("SKIPPED: fewer than two CUDA devices"), 77;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  constexpr std::uint64_t beside = 64 << 20;
  std::vector<variant> more;
  for (const std::string& text : variants) {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos)
      throw std::runtime_error("--variants " + text + ": it must be ALGORITHM:OPTIONS");
    more.push_back({text.substr(0, colon), text.substr(colon + 1)});
  }
  world all(ranks, rounds > 0 ? beside : *std::max_element(sizes.begin(), sizes.end()), more);
  bench bench(all, samples);
  nlohmann::json records = nlohmann::json::array();
  const auto save = [&] {
    if (!out.empty())
      std::ofstream(out) << nlohmann::json{
          {"versions", {{"isthmus", isthmus_version()}, {"nccl", std::to_string(all.nccl_version())}}},
          {"records", records}}.dump(1);
  };
  if (rounds > 0) {
    std::printf("%d ranks, NCCL %d; how much longer 20 matrix products take\n", ranks, all.nccl_version());
    records = bench.beside_products({{ISTHMUS_ALLGATHER, true, beside},
                                     {ISTHMUS_ALLGATHER, false, beside},
                                     {ISTHMUS_REDUCE_SCATTER, false, beside}},
                                    rounds);
  } else {
    std::printf("%d ranks, NCCL %d; microseconds call by call and in a graph; * other options\n%-29s", ranks,
                all.nccl_version(), "collective, bytes");
    for (const provider& by : all.providers()) std::printf(" | %17s", by.label().c_str());
    std::printf("\n");
    for (const std::uint64_t bytes : sizes)
      for (const shape& what : {shape{ISTHMUS_ALLGATHER, false, bytes}, shape{ISTHMUS_ALLGATHER, true, bytes},
                                shape{ISTHMUS_ALLTOALL, false, bytes}, shape{ISTHMUS_BROADCAST, false, bytes},
                                shape{ISTHMUS_REDUCE_SCATTER, false, bytes}}) {
        if (!only.empty() && only != isthmus_collective_name(what.collective)) continue;
        const nlohmann::json made = bench.run(what);
        records.insert(records.end(), made.begin(), made.end());
        save();  // whoever stops this program has what was measured
      }
  }
  save();
  std::fflush(stdout);
  std::_Exit(bench.kept_promise() ? 0 : 1);  // the communicators go with the process
} catch (const std::exception& failure) {
  std::fprintf(stderr, "failed: %s\n", failure.what());
  return 1;
}
