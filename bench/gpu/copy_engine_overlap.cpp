#include <isthmus/fused.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "copy_engine_timer.hpp"
#include "harness/document.hpp"
#include "inputs.hpp"

namespace copy_bench {
namespace {

using bench::median;

constexpr std::uint64_t side = 8192;
constexpr int products = 20;

// An 8192^3 bfloat16 product on one device by cuBLASLt: a fused plan of one rank. Inputs are random, because
// zeros are faster.
class matrix_product {
 public:
  explicit matrix_product(int rank) : m_communicator(communicators(rank, 1, "copy_engine", "").front()) {
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
      gpu_bench::fill_repeated(*matrix, bytes, rank, ISTHMUS_BFLOAT16);
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
  const call_provider* provider = nullptr;
  call_shape shape{};
  std::vector<captured_graph> graphs{};  // one per rank
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
  overlap_rank(const timer& timer, int rank)
      : m_timer(timer), m_all(timer.all()), m_tools(timer.tools(rank)), m_rank(rank), m_product(rank) {}

  void prepare(companion& entry, double alone_ms);
  sample measure_once(companion& entry);
  void measure(std::vector<companion>& companions, int rounds);

 private:
  int enqueue(companion& entry);

  const timer& m_timer;
  device_ranks& m_all;
  const rank_tools& m_tools;
  int m_rank;
  matrix_product m_product;
};

void overlap_rank::prepare(companion& entry, double alone_ms) {
  constexpr int calls = calls_per_graph;
  // The check also runs first-call setup of the libraries, which a capture may forbid.
  const std::uint64_t wrong = m_timer.count_wrong_words(*entry.provider, entry.shape, m_rank);
  const captured_graph new_graph = m_timer.capture(*entry.provider, entry.shape, m_rank, calls);
  double each_us = m_timer.graph_us(new_graph, m_rank, calls) * (calls + 2);
  for (int i = 0; i < 2; ++i)
    each_us = std::min(each_us, m_timer.graph_us(new_graph, m_rank, calls) * (calls + 2));
  entry.graphs[static_cast<std::size_t>(m_rank)] = new_graph;
  if (m_rank == 0) {
    entry.wrong = wrong;
    entry.launches = static_cast<int>(std::ceil(1.5 * alone_ms * 1e3 / each_us)) + 1;
    entry.timed = std::max(1, static_cast<int>(0.7 * alone_ms * 1e3 / each_us) - 1);
  }
  m_all.sync_ranks(m_rank);
}

// Enqueues the products, and the companion graphs on a separate stream. Returns the number of graph launches.
int overlap_rank::enqueue(companion& entry) {
  const auto launch = [&](int i) {
    check(cudaGraphLaunch(entry.graphs[static_cast<std::size_t>(m_rank)].graph, m_tools.stream));
    if (i == 0) check(cudaEventRecord(m_tools.overlap_start, m_tools.stream));
    if (i == entry.timed) check(cudaEventRecord(m_tools.overlap_stop, m_tools.stream));
  };
  const int launched = entry.launches;
  if (launched > 0) launch(0);
  check(cudaEventRecord(m_tools.compute_start, m_tools.compute));
  for (int i = 0; i < products; ++i) m_product.enqueue(m_tools.compute);
  check(cudaEventRecord(m_tools.compute_stop, m_tools.compute));
  // The driver queues a limited number of graphs; beyond that, a launch blocks the host until some have run.
  for (int i = 1; i < launched; ++i) launch(i);
  return launched;
}

sample overlap_rank::measure_once(companion& entry) {
  int launched = 0;
  for (int attempt = 0; attempt < 7; ++attempt) {
    m_all.sync_ranks(m_rank);
    launched = enqueue(entry);
    check(cudaStreamSynchronize(m_tools.compute));
    const bool covered = entry.launches == 0 || cudaStreamQuery(m_tools.stream) == cudaErrorNotReady;
    check(cudaStreamSynchronize(m_tools.stream));
    if (m_all.slowest(m_rank, covered ? 0 : 1) > 0) {  // the estimate was too low: retry with more launches
      if (m_rank == 0) entry.launches *= 2;
      continue;
    }
    sample result;
    if (entry.launches > 0)
      result.us = m_all.slowest(m_rank, elapsed_us(m_tools.overlap_start, m_tools.overlap_stop) /
                                            (entry.timed * (calls_per_graph + 2)));
    result.ms = m_all.slowest(m_rank, elapsed_us(m_tools.compute_start, m_tools.compute_stop) / 1e3);
    return result;
  }
  throw std::runtime_error(std::to_string(launched) + " graphs of " + entry.shape.name() + " by " +
                           entry.provider->label() + " ended before the concurrent products");
}

// The first companion is idle. Each other companion is compared with idle runs just before and after it.
void overlap_rank::measure(std::vector<companion>& companions, int rounds) {
  companion& idle = companions[0];
  for (int i = 0; i < 3; ++i) measure_once(idle);
  const double single_ms = measure_once(idle).ms;
  for (companion& entry : companions)
    if (entry.provider != nullptr) prepare(entry, single_ms);
  double previous_ms = single_ms;
  for (int round = 0; round < rounds; ++round)
    for (std::size_t position = 0; position < companions.size(); ++position) {
      companion& entry = companions[(position + static_cast<std::size_t>(round)) % companions.size()];
      const sample overlapped_sample = measure_once(entry);
      const double next_ms = measure_once(idle).ms;
      if (m_rank == 0) {
        entry.ratios.push_back(2 * overlapped_sample.ms / (previous_ms + next_ms));
        entry.us.push_back(overlapped_sample.us);
        entry.ms.push_back(overlapped_sample.ms);
      }
      previous_ms = next_ms;
    }
  for (companion& entry : companions)
    if (entry.provider != nullptr)
      check(cudaGraphExecDestroy(entry.graphs[static_cast<std::size_t>(m_rank)].graph));
}

nlohmann::json records_of(const std::vector<companion>& companions, int ranks) {
  nlohmann::json records = nlohmann::json::array();
  for (const companion& entry : companions) {
    const double slowdown = 100 * (median(entry.ratios) - 1);
    if (entry.provider == nullptr) {
      std::printf("products alone: %.2f ms, against themselves %+.2f %%\n", median(entry.ms), slowdown);
      continue;
    }
    nlohmann::json line = record(*entry.provider, entry.shape, ranks, "graph", entry.us);
    line["beside"] = "20 products 8192x8192x8192 bfloat16";
    line["wrong"] = entry.wrong;
    line["gemm_slowdown_pct"] = slowdown;
    line["method_noise_pct"] = 100 * (median(companions[0].ratios) - 1);
    line["gemm_ms"] = bench::spread(entry.ms);
    line["calls_beside"] = entry.launches * (calls_per_graph + 2);
    records.push_back(line);
    std::printf("products with %-19s %9llu by %-22s %+6.2f %%, %8.1f us per call %s\n",
                entry.shape.name().c_str(), static_cast<unsigned long long>(entry.shape.bytes),
                entry.provider->label().c_str(), slowdown, median(entry.us), entry.provider->options.c_str());
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

nlohmann::json measure_with_products(const timer& timer, const std::vector<call_shape>& shapes, int rounds) {
  std::vector<companion> companions(1);  // idle against idle, which shows the noise of the method
  for (const call_shape& shape : shapes)
    for (const call_provider& provider : timer.all().providers())
      if (provider.runs(shape)) companions.push_back({&provider, shape});
  for (companion& entry : companions) entry.graphs.resize(static_cast<std::size_t>(timer.all().size()));
  timer.all().each([&](int rank) { overlap_rank(timer, rank).measure(companions, rounds); });
  return records_of(companions, timer.all().size());
}

}  // namespace copy_bench
