// The slowdown of matrix products by concurrent copies. Clock drift exceeds the slowdown, so each measurement is
// compared with idle runs just before and after it.
#include <isthmus/fused.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "copy_engine.hpp"
#include "harness/gpu/check.hpp"

namespace gpu_bench {
namespace {

using bench::median;

constexpr std::uint64_t side = 8192;
constexpr int products = 20;

// An 8192^3 bfloat16 product on one device by cuBLASLt: a fused plan of one rank. Inputs are random, because
// zeros are faster.
class matrix_product {
 public:
  explicit matrix_product(int rank)
      : m_communicator(isthmus_communicators(rank, 1, "[[rule]]\nuse = \"copy_engine\"\n").front()) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof description;
    description.kind = ISTHMUS_FUSED_ALLGATHER_GEMM;
    description.mode = ISTHMUS_FUSED_SEQUENTIAL;
    description.m = description.n = description.k = side;
    description.input = description.output = ISTHMUS_BFLOAT16;
    check(isthmus_fused_plan_create(m_communicator, &description, &m_plan));
    constexpr std::uint64_t bytes = side * side * 2;
    for (std::byte** matrix : {&m_a, &m_b, &m_c}) {
      check(cudaMalloc(reinterpret_cast<void**>(matrix), bytes));
      fill_inputs(*matrix, bytes, rank, ISTHMUS_BFLOAT16);
    }
  }
  ~matrix_product() {
    isthmus_fused_plan_destroy(m_plan);
    isthmus_communicator_destroy(m_communicator);
    for (std::byte* matrix : {m_a, m_b, m_c}) cudaFree(matrix);
  }
  matrix_product(const matrix_product&) = delete;
  matrix_product& operator=(const matrix_product&) = delete;

  void enqueue(cudaStream_t stream) {
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof arguments;
    arguments.a = m_a;
    arguments.b = m_b;
    arguments.c = m_c;
    arguments.alpha = 1;
    arguments.stream = stream;
    check(isthmus_fused_run(m_plan, &arguments));
  }

 private:
  isthmus_communicator m_communicator = nullptr;
  isthmus_fused_plan m_plan = nullptr;
  std::byte *m_a = nullptr, *m_b = nullptr, *m_c = nullptr;
};

constexpr int calls_per_graph = 8;  // plus two that align the ranks

struct companion {  // runs concurrently with the products; without a provider: idle
  const copy_provider* provider = nullptr;
  bench_case test_case{};
  std::uint64_t wrong = 0;
  int launches = 0;                          // of the graph; together they outlast the products
  int timed = 0;                             // timed launches, after the first; they end before the products
  std::vector<double> ratios{}, us{}, ms{};  // products relative to idle, call, products
};

struct sample {
  double ms = 0, us = 0;  // time of the products, and of a companion call; of the slowest rank
};

// The work of one rank: its products and its part of every companion.
class overlap_rank {
 public:
  overlap_rank(const copy_comparison& comparison, const device_thread& self, std::size_t companions)
      : m_comparison(comparison), m_self(self), m_product(self.rank()), m_graphs(companions) {
    check(cudaStreamCreateWithFlags(&m_compute, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&m_compute_start, &m_compute_stop, &m_overlap_start, &m_overlap_stop})
      check(cudaEventCreate(event));
  }

  void measure(std::vector<companion>& companions, int rounds);

 private:
  void prepare(companion& entry, cudaGraphExec_t& graph, double alone_ms);
  int enqueue(const companion& entry, cudaGraphExec_t graph);
  sample measure_once(companion& entry, cudaGraphExec_t graph);

  const copy_comparison& m_comparison;
  const device_thread& m_self;
  matrix_product m_product;
  std::vector<cudaGraphExec_t> m_graphs;  // of the companions
  cudaStream_t m_compute = nullptr;
  cudaEvent_t m_compute_start = nullptr, m_compute_stop = nullptr;
  cudaEvent_t m_overlap_start = nullptr, m_overlap_stop = nullptr;
};

void overlap_rank::prepare(companion& entry, cudaGraphExec_t& graph, double alone_ms) {
  const device_call call = m_comparison.make_call(m_self, *entry.provider, entry.test_case);
  // The check also runs first-call setup of the libraries, which a capture may forbid.
  const std::uint64_t wrong =
      entry.provider->is_bare() ? 0 : count_wrong(m_self, call);  // nothing orders the ranks
  const captured_graph captured = capture(m_self, call, calls_per_graph);
  double each_us = graph_us(m_self, call, captured);
  for (int i = 0; i < 2; ++i) each_us = std::min(each_us, graph_us(m_self, call, captured));
  each_us *= calls_per_graph + 2;
  graph = captured.graphs.front();
  if (m_self.is_first()) {
    entry.wrong = wrong;
    entry.launches = static_cast<int>(std::ceil(1.5 * alone_ms * 1e3 / each_us)) + 1;
    entry.timed = std::max(1, static_cast<int>(0.7 * alone_ms * 1e3 / each_us) - 1);
  }
  m_self.sync_threads();
}

// Enqueues the products, and the companion graphs on a separate stream. Returns the number of graph launches.
int overlap_rank::enqueue(const companion& entry, cudaGraphExec_t graph) {
  const auto launch = [&](int i) {
    check(cudaGraphLaunch(graph, m_self.stream()));
    if (i == 0) check(cudaEventRecord(m_overlap_start, m_self.stream()));
    if (i == entry.timed) check(cudaEventRecord(m_overlap_stop, m_self.stream()));
  };
  const int launched = entry.launches;
  if (launched > 0) launch(0);
  check(cudaEventRecord(m_compute_start, m_compute));
  for (int i = 0; i < products; ++i) m_product.enqueue(m_compute);
  check(cudaEventRecord(m_compute_stop, m_compute));
  // The driver queues a limited number of graphs; beyond that, a launch blocks the host until some have run.
  for (int i = 1; i < launched; ++i) launch(i);
  return launched;
}

sample overlap_rank::measure_once(companion& entry, cudaGraphExec_t graph) {
  int launched = 0;
  for (int attempt = 0; attempt < 7; ++attempt) {
    m_self.sync_threads();
    launched = enqueue(entry, graph);
    check(cudaStreamSynchronize(m_compute));
    const bool covered = entry.launches == 0 || cudaStreamQuery(m_self.stream()) == cudaErrorNotReady;
    check(cudaStreamSynchronize(m_self.stream()));
    if (m_self.slowest(covered ? 0 : 1) > 0) {  // the estimate was too low: retry with more launches
      if (m_self.is_first()) entry.launches *= 2;
      continue;
    }
    sample result;
    if (entry.launches > 0)
      result.us =
          m_self.slowest(elapsed_us(m_overlap_start, m_overlap_stop) / (entry.timed * (calls_per_graph + 2)));
    result.ms = m_self.slowest(elapsed_us(m_compute_start, m_compute_stop) / 1e3);
    return result;
  }
  throw std::runtime_error(std::to_string(launched) + " graphs of " + label_of(entry.test_case) + " by " +
                           entry.provider->label() + " ended before the concurrent products");
}

// The first companion is idle. Each other companion is compared with idle runs just before and after it.
void overlap_rank::measure(std::vector<companion>& companions, int rounds) {
  companion& idle = companions[0];
  for (int i = 0; i < 3; ++i) measure_once(idle, nullptr);
  const double single_ms = measure_once(idle, nullptr).ms;
  for (std::size_t i = 1; i < companions.size(); ++i) prepare(companions[i], m_graphs[i], single_ms);
  double previous_ms = single_ms;
  bench::interleave(companions.size(), 0, rounds, [&](std::size_t i, int) {
    companion& entry = companions[i];
    const sample overlapped_sample = measure_once(entry, m_graphs[i]);
    const double next_ms = measure_once(idle, nullptr).ms;
    if (m_self.is_first()) {
      entry.ratios.push_back(2 * overlapped_sample.ms / (previous_ms + next_ms));
      entry.us.push_back(overlapped_sample.us);
      entry.ms.push_back(overlapped_sample.ms);
    }
    previous_ms = next_ms;
  });
  for (std::size_t i = 1; i < companions.size(); ++i) check(cudaGraphExecDestroy(m_graphs[i]));
}

nlohmann::json records_of(const std::vector<companion>& companions, int ranks) {
  nlohmann::json records = nlohmann::json::array();
  for (const companion& entry : companions) {
    const double slowdown = 100 * (median(entry.ratios) - 1);
    if (entry.provider == nullptr) {
      std::printf("products alone: %.2f ms, against themselves %+.2f %%\n", median(entry.ms), slowdown);
      continue;
    }
    nlohmann::json line = copy_record(*entry.provider, entry.test_case, ranks, "graph", entry.us);
    line["beside"] = "20 products 8192x8192x8192 bfloat16";
    line["wrong"] = entry.wrong;
    line["gemm_slowdown_pct"] = slowdown;
    line["method_noise_pct"] = 100 * (median(companions[0].ratios) - 1);
    line["gemm_ms"] = bench::spread(entry.ms);
    line["calls_beside"] = entry.launches * (calls_per_graph + 2);
    records.push_back(line);
    std::printf("products with %-19s %9llu by %-22s %+6.2f %%, %8.1f us per call %s\n",
                label_of(entry.test_case).c_str(), static_cast<unsigned long long>(entry.test_case.bytes),
                entry.provider->label().c_str(), slowdown, median(entry.us), entry.provider->options.c_str());
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

nlohmann::json measure_with_products(const copy_comparison& comparison,
                                     const std::vector<bench_case>& test_cases, int rounds) {
  std::vector<companion> companions(1);  // idle against idle, which shows the noise of the method
  for (const bench_case& test_case : test_cases)
    for (const copy_provider& provider : comparison.providers())
      if (provider.runs(test_case)) companions.push_back({&provider, test_case});
  comparison.ranks().each([&](const device_thread& self) {
    overlap_rank(comparison, self, companions.size()).measure(companions, rounds);
  });
  return records_of(companions, comparison.ranks().size());
}

}  // namespace gpu_bench
