// Every collective by one backend of Isthmus against the ways of NCCL: default, symmetric windows and copy engines. Calls
// are issued directly and in captured graphs, with one thread per rank.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "copy_engine.hpp"
#include "gpu_bench.hpp"
#include "harness/clock.hpp"
#include "harness/gpu/check.hpp"

namespace gpu_bench {
namespace {

using bench::median;

const std::vector<std::string> provider_names = {"nccl", "nccl_symmetric", "nccl_copy_engine", "isthmus"};

struct collective_settings : common_settings {
  std::string use = "p2p";
  std::vector<std::string> only, providers = provider_names;
  double limit_s = 0;

  std::string rule() const { return use == "default" ? "" : "[[rule]]\nuse = \"" + use + "\"\n"; }
  bool includes(const bench_case& test_case) const {
    if (test_case.collective == ISTHMUS_BARRIER && test_case.bytes != sizes.front()) return false;
    return only.empty() || std::find(only.begin(), only.end(), test_case.name()) != only.end();
  }
  bool includes(const std::string& provider) const {
    return std::find(providers.begin(), providers.end(), provider) != providers.end();
  }
};

// One way to make a call, with its own buffers and communicators, by rank: of NCCL or of Isthmus.
struct collective_provider {
  std::string name;
  std::vector<rank_buffers> buffers;
  std::vector<bench::nccl_comm> nccl;
  std::vector<isthmus_communicator> isthmus;
};

struct provider_times {
  std::vector<double> stream_us, graph_us;
  std::uint64_t wrong = 0;
};

class collective_comparison {
 public:
  collective_comparison(int size, const collective_settings& settings)
      : m_samples(settings.samples), m_ranks(size) {
    const std::uint64_t send = settings.largest(), recv = send * static_cast<std::uint64_t>(size);
    nccl_copy_engine_config config;
    const auto join = [&](const char* provider, bench::nccl_config* with = nullptr) {
      return settings.includes(provider) ? nccl_communicators(m_nccl, size, with)
                                         : std::vector<bench::nccl_comm>();
    };
    const auto symmetric = join("nccl_symmetric");
    const auto engines = join("nccl_copy_engine", reinterpret_cast<bench::nccl_config*>(&config));
    const std::vector<rank_buffers> plain = plain_buffers(send, recv);
    if (settings.includes("nccl")) m_providers.push_back({"nccl", plain, join("nccl"), {}});
    if (!symmetric.empty())
      m_providers.push_back({"nccl_symmetric", window_buffers(m_nccl, symmetric, send, recv), symmetric, {}});
    if (!engines.empty())
      m_providers.push_back({"nccl_copy_engine", window_buffers(m_nccl, engines, send, recv), engines, {}});
    if (settings.includes("isthmus"))
      m_providers.push_back({"isthmus", plain, {}, isthmus_communicators(0, size, settings.rule())});
  }

  std::string nccl_version() const { return m_nccl.version(); }
  const std::vector<collective_provider>& providers() const { return m_providers; }
  std::vector<provider_times> run(const bench_case& test_case) const {
    std::vector<provider_times> result;
    m_ranks.each([&](const device_thread& self) {
      std::vector<provider_times> own = run_rank(self, test_case);
      if (self.is_first()) result = std::move(own);
    });
    return result;
  }

 private:
  std::vector<rank_buffers> plain_buffers(std::uint64_t send_bytes, std::uint64_t recv_bytes) const {
    std::vector<rank_buffers> buffers(static_cast<std::size_t>(m_ranks.size()));
    m_ranks.each([&](const device_thread& self) {
      rank_buffers& own = buffers[static_cast<std::size_t>(self.rank())];
      check(cudaMalloc(reinterpret_cast<void**>(&own.send), send_bytes));
      check(cudaMalloc(reinterpret_cast<void**>(&own.recv), recv_bytes));
      fill_inputs(own.send, send_bytes, self.rank());
    });
    return buffers;
  }

  device_call make_call(const device_thread& self, const collective_provider& provider,
                        const bench_case& test_case) const {
    const auto own = static_cast<std::size_t>(self.rank());
    if (provider.isthmus.empty())
      return make_nccl_call(self, test_case, {provider.buffers[own]}, m_nccl, {provider.nccl[own]});
    return make_isthmus_call(self, test_case, {provider.buffers[own]}, {provider.isthmus[own]});
  }

  std::vector<provider_times> run_rank(const device_thread& self, const bench_case& test_case) const {
    const int calls = test_case.bytes <= (64 << 10) ? 40 : test_case.bytes <= (1 << 20) ? 16 : 6;
    std::vector<device_call> device_calls;
    std::vector<captured_graph> graphs;
    std::vector<provider_times> result(m_providers.size());
    for (std::size_t i = 0; i < m_providers.size(); ++i) {
      device_calls.push_back(make_call(self, m_providers[i], test_case));
      result[i].wrong = count_wrong(self, device_calls[i]);
      graphs.push_back(capture(self, device_calls[i], calls));
    }
    bench::interleave(m_providers.size(), 1, m_samples, [&](std::size_t i, int round) {
      const double in_graph = graph_us(self, device_calls[i], graphs[i]);
      const double on_stream = stream_us(self, device_calls[i], calls);
      if (round < 0) return;
      result[i].graph_us.push_back(in_graph);
      result[i].stream_us.push_back(on_stream);
    });
    for (const captured_graph& graph : graphs) destroy(graph);
    return result;
  }

  int m_samples;
  bench::nccl_library m_nccl;
  device_ranks m_ranks;
  std::vector<collective_provider> m_providers;
};

// Prints one line and adds the records of a case.
void report(const collective_comparison& comparison, const collective_settings& settings,
            const bench_case& test_case, int size, const std::vector<provider_times>& times,
            nlohmann::json& records) {
  bench::measured_operation operation = test_case.operation(size);
  if (test_case.collective == ISTHMUS_BARRIER) operation.bytes = 0;
  std::printf("%-15s %9llu", test_case.name().c_str(), static_cast<unsigned long long>(operation.bytes));
  for (const bool in_graph : {false, true}) {
    double best_nccl = std::numeric_limits<double>::infinity(), own = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const bool is_isthmus = comparison.providers()[i].name == "isthmus";
      const std::vector<double>& us = in_graph ? times[i].graph_us : times[i].stream_us;
      const bench::method method{comparison.providers()[i].name,
                                 is_isthmus ? settings.use : "nccl",
                                 in_graph ? "graph" : "stream",
                                 {},
                                 us};
      nlohmann::json line = bench::record_of(
          operation, method, bench::bandwidth_of(test_case.collective, operation.bytes, size, median(us)));
      if (bench::reduces(test_case.collective)) line["op"] = "sum";
      line["wrong"] = times[i].wrong;
      records.push_back(std::move(line));
      (is_isthmus ? own : best_nccl) = is_isthmus ? median(us) : std::min(best_nccl, median(us));
      std::printf("%s%8.2f%s", i == 0 ? " | " : " ", median(us), times[i].wrong != 0 ? " WRONG" : "");
    }
    if (best_nccl < std::numeric_limits<double>::infinity() && own > 0) std::printf(" %6.2fx", best_nccl / own);
  }
  std::printf("\n");
}

int run(const collective_settings& settings) {
  const int ranks = settings.find_ranks(2);
  if (ranks == 0) return exit_skipped;
  const std::uint64_t start = bench::steady_ns();
  const collective_comparison comparison(ranks, settings);
  const nlohmann::json versions{{"nccl", comparison.nccl_version()}};
  std::printf("%d ranks, NCCL %s; median us of", ranks, comparison.nccl_version().c_str());
  for (const collective_provider& provider : comparison.providers())
    std::printf(" %s%s,", provider.name.c_str(),
                provider.isthmus.empty() ? "" : (" (" + settings.use + ")").c_str());
  std::printf(" and how many times as fast as the best of NCCL isthmus is: issued directly | in a graph\n");
  nlohmann::json records = nlohmann::json::array();
  int status = 0;
  for (const std::uint64_t bytes : settings.sizes) {
    for (const bench_case& test_case : cases(bytes)) {
      if (!settings.includes(test_case)) continue;
      if (settings.limit_s > 0 && static_cast<double>(bench::steady_ns() - start) / 1e9 > settings.limit_s) {
        std::printf("stopped after %g s\n", settings.limit_s);
        return settings.write(records, versions);
      }
      report(comparison, settings, test_case, ranks, comparison.run(test_case), records);
    }
    status = settings.write(records, versions);  // a later size may not complete
  }
  return status;
}

}  // namespace

void add_collectives(CLI::App& app, program& result) {
  const auto settings = std::make_shared<collective_settings>();
  settings->samples = 9;
  settings->sizes = {128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
  CLI::App* const subcommand =
      result.add(app, "collectives", "every collective by a backend of Isthmus against NCCL", settings,
                 "--samples", "--sizes", [settings] { return run(*settings); });
  subcommand->add_option("--ranks", settings->ranks, "ranks, one per device (0: all devices)");
  subcommand
      ->add_option("--use", settings->use, "backend[:algorithm] of Isthmus, or default: its default rules")
      ->capture_default_str();
  subcommand->add_option("--only", settings->only, "collectives (default: all)")->delimiter(',');
  subcommand->add_option("--providers", settings->providers, "what to measure (default: everything)")
      ->delimiter(',')
      ->check(CLI::IsMember(provider_names));
  subcommand->add_option("--limit", settings->limit_s, "stop after this many seconds (0: no limit)");
}

}  // namespace gpu_bench
