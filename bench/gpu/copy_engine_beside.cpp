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
    for (std::byte** matrix : {&m_a, &m_b, &m_c}) {
      check(cudaMalloc(reinterpret_cast<void**>(matrix), bytes));
      gpu_bench::fill_repeated(*matrix, bytes, rank, ISTHMUS_BFLOAT16);
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

struct sample {
  double ms = 0, us = 0;  // of the products, and of a call of the companion; of the slowest rank
};

// One rank's part: its products, and its side of every companion.
class rank_beside {
 public:
  rank_beside(const timer& timer, int rank)
      : m_timer(timer), m_all(timer.all()), m_tools(timer.tools(rank)), m_rank(rank), m_product(rank) {}

  void prepare(companion& beside, double alone_ms);
  sample take(companion& beside);
  void measure(std::vector<companion>& companions, int rounds);

 private:
  int enqueue(companion& beside);

  const timer& m_timer;
  world& m_all;
  const rank_tools& m_tools;
  int m_rank;
  multiplication m_product;
};

void rank_beside::prepare(companion& beside, double alone_ms) {
  constexpr int calls = calls_of_graph;
  // Also because libraries set things up at the first call, which a capture may forbid.
  const std::uint64_t wrong = m_timer.wrong_words(*beside.by, beside.what, m_rank);
  const captured made = m_timer.capture(*beside.by, beside.what, m_rank, calls);
  double each_us = m_timer.graph_us(made, m_rank, calls) * (calls + 2);
  for (int i = 0; i < 2; ++i) each_us = std::min(each_us, m_timer.graph_us(made, m_rank, calls) * (calls + 2));
  beside.graphs[static_cast<std::size_t>(m_rank)] = made;
  if (m_rank == 0) {
    beside.wrong = wrong;
    beside.launches = static_cast<int>(std::ceil(1.5 * alone_ms * 1e3 / each_us)) + 1;
    beside.timed = std::max(1, static_cast<int>(0.7 * alone_ms * 1e3 / each_us) - 1);
  }
  m_all.meet(m_rank);
}

// The products, and the companion's graphs on a stream of their own. Returns how many of these.
int rank_beside::enqueue(companion& beside) {
  const auto launch = [&](int i) {
    check(cudaGraphLaunch(beside.graphs[static_cast<std::size_t>(m_rank)].graph, m_tools.stream));
    if (i == 0) check(cudaEventRecord(m_tools.beside_start, m_tools.stream));
    if (i == beside.timed) check(cudaEventRecord(m_tools.beside_stop, m_tools.stream));
  };
  const int launched = beside.launches;
  if (launched > 0) launch(0);
  check(cudaEventRecord(m_tools.compute_start, m_tools.compute));
  for (int i = 0; i < products; ++i) m_product.enqueue(m_tools.compute);
  check(cudaEventRecord(m_tools.compute_stop, m_tools.compute));
  // The driver takes only so many graphs ahead; then it keeps the host until some have run.
  for (int i = 1; i < launched; ++i) launch(i);
  return launched;
}

sample rank_beside::take(companion& beside) {
  int launched = 0;
  for (int attempt = 0; attempt < 7; ++attempt) {
    m_all.meet(m_rank);
    launched = enqueue(beside);
    check(cudaStreamSynchronize(m_tools.compute));
    const bool covered = beside.launches == 0 || cudaStreamQuery(m_tools.stream) == cudaErrorNotReady;
    check(cudaStreamSynchronize(m_tools.stream));
    if (m_all.slowest(m_rank, covered ? 0 : 1) > 0) {  // the estimate came from a slow moment
      if (m_rank == 0) beside.launches *= 2;
      continue;
    }
    sample taken;
    if (beside.launches > 0)
      taken.us = m_all.slowest(m_rank, elapsed_us(m_tools.beside_start, m_tools.beside_stop) /
                                           (beside.timed * (calls_of_graph + 2)));
    taken.ms = m_all.slowest(m_rank, elapsed_us(m_tools.compute_start, m_tools.compute_stop) / 1e3);
    return taken;
  }
  throw std::runtime_error(std::to_string(launched) + " graphs of " + beside.what.name() + " by " +
                           beside.by->label() + " end before the products beside them");
}

// The first companion is nothing: each other one is compared with it just before and just after.
void rank_beside::measure(std::vector<companion>& companions, int rounds) {
  companion& nothing = companions[0];
  for (int i = 0; i < 3; ++i) take(nothing);
  const double alone = take(nothing).ms;
  for (companion& one : companions)
    if (one.by != nullptr) prepare(one, alone);
  double before = alone;
  for (int round = 0; round < rounds; ++round)
    for (std::size_t turn = 0; turn < companions.size(); ++turn) {
      companion& one = companions[(turn + static_cast<std::size_t>(round)) % companions.size()];
      const sample with = take(one);
      const double after = take(nothing).ms;
      if (m_rank == 0) {
        one.ratios.push_back(2 * with.ms / (before + after));
        one.us.push_back(with.us);
        one.ms.push_back(with.ms);
      }
      before = after;
    }
  for (companion& one : companions)
    if (one.by != nullptr) check(cudaGraphExecDestroy(one.graphs[static_cast<std::size_t>(m_rank)].graph));
}

nlohmann::json records_of(const std::vector<companion>& companions, int ranks) {
  nlohmann::json records = nlohmann::json::array();
  for (const companion& one : companions) {
    const double slowdown = 100 * (median(one.ratios) - 1);
    if (one.by == nullptr) {
      std::printf("products beside nothing: %.2f ms, against themselves %+.2f %%\n", median(one.ms), slowdown);
      continue;
    }
    nlohmann::json line = record(*one.by, one.what, ranks, "graph", one.us);
    line["beside"] = "20 products 8192x8192x8192 bfloat16";
    line["wrong"] = one.wrong;
    line["gemm_slowdown_pct"] = slowdown;
    line["method_noise_pct"] = 100 * (median(companions[0].ratios) - 1);
    line["gemm_ms"] = bench::spread(one.ms);
    line["calls_beside"] = one.launches * (calls_of_graph + 2);
    records.push_back(line);
    std::printf("products beside %-19s %9llu by %-22s %+6.2f %%, %8.1f us a call %s\n", one.what.name().c_str(),
                static_cast<unsigned long long>(one.what.bytes), one.by->label().c_str(), slowdown,
                median(one.us), one.by->options.c_str());
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

nlohmann::json measure_beside_products(const timer& timer, const std::vector<shape>& shapes, int rounds) {
  std::vector<companion> companions(1);  // the first is nothing against nothing: what the method itself sees
  for (const shape& what : shapes)
    for (const provider& by : timer.all().providers())
      if (by.runs(what)) companions.push_back({&by, what});
  for (companion& one : companions) one.graphs.resize(static_cast<std::size_t>(timer.all().size()));
  timer.all().each([&](int rank) { rank_beside(timer, rank).measure(companions, rounds); });
  return records_of(companions, timer.all().size());
}

}  // namespace copy_bench
