// Isthmus over NCCL against NCCL alone: host cost of a call, and device time inside a captured graph. One thread
// per rank.
#include <algorithm>
#include <cstdio>

#include "gpu_bench.hpp"
#include "harness/clock.hpp"
#include "harness/gpu/check.hpp"
#include "harness/gpu/timer.hpp"

namespace gpu_bench {
namespace {

using bench::median;

enum provider { nccl, isthmus_over_nccl, nccl_again, providers };

// Samples of one provider, each from the slowest rank.
struct case_result {
  std::vector<double> host[providers], graph[providers];
  // Overhead of a call over NCCL, from interleaved calls: the maximum over ranks of the median difference. A
  // maximum over single samples would add the noise of the slower rank.
  double overhead_us[providers] = {};
  std::uint64_t wrong[providers] = {};

  double graph_ratio(provider entry) const { return median(graph[entry]) / median(graph[nccl]); }
};

class nccl_comparison {
 public:
  nccl_comparison(int ranks, const common_settings& settings)
      : m_samples(settings.samples),
        m_ranks(ranks),
        // This measures the overhead over NCCL, so it forces NCCL; selection would often choose peer memory.
        m_isthmus(isthmus_communicators(0, ranks, "[[rule]]\nuse = \"nccl\"\n")),
        m_raw(nccl_communicators(m_nccl, ranks)),
        m_buffers(static_cast<std::size_t>(ranks)) {
    const std::uint64_t send_bytes = settings.largest(), recv_bytes = send_bytes * m_buffers.size();
    m_ranks.each([&](const device_thread& self) {
      rank_buffers& own = m_buffers[static_cast<std::size_t>(self.rank())];
      check(cudaMalloc(reinterpret_cast<void**>(&own.send), send_bytes));
      check(cudaMalloc(reinterpret_cast<void**>(&own.recv), recv_bytes));
      fill_inputs(own.send, send_bytes, self.rank());
    });
  }

  std::string nccl_version() const { return m_nccl.version(); }
  case_result run(const bench_case& test_case) const {
    case_result result;
    m_ranks.each([&](const device_thread& self) {
      const auto own = static_cast<std::size_t>(self.rank());
      std::vector<device_call> calls{make_nccl_call(self, test_case, {m_buffers[own]}, m_nccl, {m_raw[own]}),
                                     make_isthmus_call(self, test_case, {m_buffers[own]}, {m_isthmus[own]})};
      calls.push_back(calls[nccl]);
      case_result rank_result;
      for (const provider entry : {nccl, isthmus_over_nccl})
        rank_result.wrong[entry] = count_wrong(self, calls[entry]);
      time_host(self, calls, rank_result);
      time_graphs(self, calls, rank_result);
      if (self.is_first()) result = std::move(rank_result);
    });
    return result;
  }

 private:
  void time_host(const device_thread& self, const std::vector<device_call>& calls, case_result& result) const;
  void time_graphs(const device_thread& self, const std::vector<device_call>& calls, case_result& result) const;

  int m_samples;
  bench::nccl_library m_nccl;
  device_ranks m_ranks;
  std::vector<isthmus_communicator> m_isthmus;
  std::vector<bench::nccl_comm> m_raw;
  std::vector<rank_buffers> m_buffers;
};

// The three series alternate call by call, so that disturbances affect all of them. A sample is the median over
// its calls, so that one preempted call does not count.
void nccl_comparison::time_host(const device_thread& self, const std::vector<device_call>& calls,
                                case_result& result) const {
  const int calls_per_sample = calls[nccl].test_case.bytes <= (1 << 20) ? 42 : 12;
  std::vector<double> differences[providers];
  for (int sample = -1; sample < m_samples; ++sample) {  // the first one warms up
    std::vector<double> us[providers];
    self.wait();
    self.sync_threads();
    bench::interleave(providers, 0, calls_per_sample, [&](std::size_t i, int) {
      const std::uint64_t start = bench::steady_ns();
      calls[i].run();
      us[i].push_back(static_cast<double>(bench::steady_ns() - start) / 1e3);
    });
    for (int i = 0; i < providers; ++i) {
      const double slowest = self.slowest(median(us[i]));
      if (sample < 0) continue;
      result.host[i].push_back(slowest);
      differences[i].push_back(median(us[i]) - median(us[nccl]));
    }
  }
  for (int i = 0; i < providers; ++i) result.overhead_us[i] = self.slowest(median(differences[i]));
  self.wait();
}

void nccl_comparison::time_graphs(const device_thread& self, const std::vector<device_call>& calls,
                                  case_result& result) const {
  const std::uint64_t bytes = calls[nccl].test_case.bytes;
  std::vector<captured_graph> graphs;
  for (const device_call& call : calls)
    graphs.push_back(capture(self, call, bytes <= (64 << 10) ? 64 : bytes <= (4 << 20) ? 16 : 4));
  bench::interleave(providers, 1, m_samples, [&](std::size_t i, int round) {
    const double us = graph_us(self, calls[i], graphs[i]);
    if (round >= 0) result.graph[i].push_back(us);
  });
  for (const captured_graph& graph : graphs) destroy(graph);
}

void add_records(const bench_case& test_case, int size, const case_result& result, nlohmann::json& records) {
  bench::measured_operation operation = test_case.operation(size);
  if (test_case.collective == ISTHMUS_BARRIER) operation.bytes = 0;
  for (const bool graph : {false, true})
    for (const provider entry : {nccl, isthmus_over_nccl}) {
      const std::vector<double>& us = graph ? result.graph[entry] : result.host[entry];
      const bench::method method{
          entry == nccl ? "nccl" : "isthmus", entry == nccl ? "" : "nccl", graph ? "graph" : "host", {}, us};
      nlohmann::json line = bench::record_of(
          operation, method, bench::bandwidth_of(test_case.collective, operation.bytes, size, median(us)));
      line["op"] = "sum";
      line["wrong"] = result.wrong[entry];
      // A second series of the same NCCL calls. Smaller differences are noise.
      if (graph && entry == nccl) line["repeat_us"] = bench::spread(result.graph[nccl_again]);
      if (!graph) line["host_overhead_us"] = result.overhead_us[entry == nccl ? nccl_again : entry];
      records.push_back(std::move(line));
    }
}

// Summary over all cases for the targets of docs/internals/nccl.md.
class result_summary {
 public:
  void add(const bench_case& test_case, const case_result& result) {
    const bool pair = test_case.collective == ISTHMUS_SEND;  // a send and a recv in one group
    (pair ? m_pairs : m_calls).push_back(result.overhead_us[isthmus_over_nccl]);
    m_repeats.push_back(result.overhead_us[nccl_again]);
    (test_case.bytes >= 1 << 20 ? m_large : m_small).push_back(result.graph_ratio(isthmus_over_nccl));
    m_wrong += result.wrong[nccl] + result.wrong[isthmus_over_nccl];
  }
  void print() const {
    print("host, one call over NCCL, us", m_calls, 0.3);
    print("host, send and recv over NCCL, us", m_pairs, 0.3);
    print("host, NCCL over itself, us", m_repeats, 0.3);
    print("graph from 1 MiB over NCCL, ratio", m_large, 1.01);
    print("graph below 1 MiB over NCCL, ratio", m_small, 1.01);
    std::printf("wrong elements: %llu\n", static_cast<unsigned long long>(m_wrong));
  }

 private:
  static void print(const char* name, const std::vector<double>& values, double target) {
    if (values.empty()) return;
    const auto is_met =
        std::count_if(values.begin(), values.end(), [&](double value) { return value <= target; });
    const bench::sample_summary all = bench::summarize(values);
    std::printf("%-36s median %.3f, min %.3f, max %.3f; %td of %zu at most %g\n", name, all.median_us,
                all.min_us, all.max_us, is_met, values.size(), target);
  }

  std::vector<double> m_calls, m_pairs, m_repeats, m_large, m_small;
  std::uint64_t m_wrong = 0;
};

int run(const common_settings& settings) {
  const int ranks = settings.find_ranks(2);
  if (ranks == 0) return exit_skipped;
  const nccl_comparison comparison(ranks, settings);
  nlohmann::json records = nlohmann::json::array();
  result_summary summary;
  std::printf("%-15s %10s | %9s %9s %7s %7s | %9s %9s %7s %7s | wrong\n", "collective", "bytes", "nccl host",
              "isthmus", "diff", "a/a", "nccl graph", "isthmus", "ratio", "a/a");
  for (const std::uint64_t bytes : settings.sizes)
    for (const bench_case& test_case : cases(bytes)) {
      if (test_case.collective == ISTHMUS_BARRIER && bytes != settings.sizes.front()) continue;
      const case_result result = comparison.run(test_case);
      summary.add(test_case, result);
      add_records(test_case, ranks, result, records);
      std::printf("%-15s %10llu | %9.2f %9.2f %7.2f %7.2f | %9.2f %9.2f %7.3f %7.3f | %llu\n",
                  test_case.name().c_str(), static_cast<unsigned long long>(bytes), median(result.host[nccl]),
                  median(result.host[isthmus_over_nccl]), result.overhead_us[isthmus_over_nccl],
                  result.overhead_us[nccl_again], median(result.graph[nccl]),
                  median(result.graph[isthmus_over_nccl]), result.graph_ratio(isthmus_over_nccl),
                  result.graph_ratio(nccl_again),
                  static_cast<unsigned long long>(result.wrong[nccl] + result.wrong[isthmus_over_nccl]));
    }
  summary.print();
  return settings.write(records, {{"nccl", comparison.nccl_version()}});
}

}  // namespace

void add_nccl(CLI::App& app, program& result) {
  const auto settings = std::make_shared<common_settings>();
  settings->samples = 21;
  settings->sizes = {128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 128 << 20};
  result
      .add(app, "nccl", "Isthmus over NCCL against NCCL alone", settings, "--repetitions", "--bytes",
           [settings] { return run(*settings); })
      ->add_option("--ranks", settings->ranks, "ranks, one per device (0: all devices)");
}

}  // namespace gpu_bench
