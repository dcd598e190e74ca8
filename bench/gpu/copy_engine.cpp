// Copies by the DMA engines of the devices against NCCL kernels and the copy-engine mode of NCCL. Measures the time
// of a call, issued directly and in a captured graph, and (copy_engine_overlap.cpp) the slowdown of concurrent
// matrix products.
#include "copy_engine.hpp"

#include <isthmus/memory.h>

#include <cstddef>
#include <cstdio>
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include "gpu_bench.hpp"
#include "harness/gpu/check.hpp"

namespace gpu_bench {
namespace {

constexpr std::uint64_t overlap_bytes = 64 << 20;

#ifdef NCCL_CTA_POLICY_ZERO
static_assert(offsetof(nccl_copy_engine_config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy));
static_assert(nccl_copy_engine_config{}.cta_policy == NCCL_CTA_POLICY_ZERO);
#endif

}  // namespace

bench_case copy_case(isthmus_collective collective, bool in_place, std::uint64_t bytes) {
  return {collective, bytes, bench::reduces(collective) ? ISTHMUS_FLOAT32 : ISTHMUS_UINT8, in_place};
}

std::string label_of(const bench_case& test_case) {
  return test_case.name() + (test_case.in_place ? " in place" : "");
}

copy_comparison::copy_comparison(int size, std::uint64_t largest,
                                 const std::vector<algorithm_variant>& variants)
    : m_ranks(size), m_largest(largest) {
  add_nccl();
  for (const char* algorithm : {"zero_copy", "push", "staged"}) add_isthmus({algorithm, ""});
  for (const algorithm_variant& entry : variants) add_isthmus(entry);
}

// Both communicators use the same buffers, which are registered as windows of the copy-engine communicator
// only. It uses copy engines if it can (allgather, alltoall) and otherwise silently falls back to kernels.
void copy_comparison::add_nccl() {
  const int size = m_ranks.size();
  nccl_copy_engine_config config;
  const auto plain = nccl_communicators(m_nccl, size);
  const auto engines = nccl_communicators(m_nccl, size, reinterpret_cast<bench::nccl_config*>(&config));
  const auto buffers = window_buffers(m_nccl, engines, m_largest, m_largest * static_cast<std::uint64_t>(size));
  m_providers.push_back({"nccl", "nccl", "", buffers, plain, {}});
  m_providers.push_back({"nccl_copy_engine", "nccl", "", buffers, engines, {}});
}

// Algorithms that do not need the heap use the buffers of NCCL.
void copy_comparison::add_isthmus(const algorithm_variant& variant) {
  const std::string use = "copy_engine:" + variant.algorithm;
  copy_provider provider{"isthmus", use, variant.options, m_providers.front().buffers, {}, {}};
  provider.isthmus = isthmus_communicators(
      0, m_ranks.size(), "[[rule]]\nuse = \"" + use + "\"\n[backend.copy_engine]\n" + variant.options + '\n');
  if (variant.algorithm != "staged")
    m_ranks.each([&](const device_thread& self) {
      const auto own = static_cast<std::size_t>(self.rank());
      void *send = nullptr, *recv = nullptr;
      check(isthmus_memory_allocate_symmetric(provider.isthmus[own], m_largest, &send));
      check(isthmus_memory_allocate_symmetric(provider.isthmus[own],
                                              m_largest * static_cast<std::uint64_t>(self.size()), &recv));
      provider.buffers[own] = {static_cast<std::byte*>(send), static_cast<std::byte*>(recv)};
      fill_inputs(send, m_largest, self.rank());
    });
  m_providers.push_back(std::move(provider));
}

device_call copy_comparison::make_call(const device_thread& self, const copy_provider& provider,
                                       const bench_case& test_case) const {
  const auto own = static_cast<std::size_t>(self.rank());
  if (provider.is_bare()) return make_bare_call(self, provider, test_case);
  if (provider.isthmus.empty())
    return make_nccl_call(self, test_case, {provider.buffers[own]}, m_nccl, {provider.nccl[own]});
  return make_isthmus_call(self, test_case, {provider.buffers[own]}, {provider.isthmus[own]});
}

nlohmann::json copy_record(const copy_provider& provider, const bench_case& test_case, int ranks,
                           const std::string& mode, const std::vector<double>& us) {
  const auto bytes = static_cast<double>(test_case.bytes), median = bench::median(us);
  const oracle::operation_shape shape = test_case.shape(ranks);
  const auto block = static_cast<double>(shape.count * oracle::bytes_of(test_case.datatype));
  // Received from peers; for broadcast as much as the root sends.
  const double bytes_in = test_case.collective == ISTHMUS_BROADCAST ? block : block * (ranks - 1);
  nlohmann::json line =
      bench::record_of(test_case.operation(ranks), {provider.name, provider.backend, mode, {}, us},
                       {bytes / median / 1e3, bytes_in / median / 1e3});
  line["in_place"] = test_case.in_place;
  if (bench::reduces(test_case.collective)) line["op"] = "sum";
  if (!provider.options.empty()) line["options"] = provider.options;
  return line;
}

namespace {

struct copy_settings : common_settings {
  int rounds = 0;
  std::string only;
  std::vector<std::string> variants, bare_parts;

  bool measures(const bench_case& test_case) const {
    return only.empty() || only == test_case.name() || only == label_of(test_case);
  }
  std::vector<algorithm_variant> parsed_variants() const {
    std::vector<algorithm_variant> parsed;
    for (const std::string& text : variants) {
      const std::size_t colon = text.find(':');
      if (colon == std::string::npos)
        throw std::runtime_error("--variants " + text + ": must be ALGORITHM:OPTIONS");
      parsed.push_back({text.substr(0, colon), text.substr(colon + 1)});
    }
    return parsed;
  }
};

// Times and properties of the calls of one provider.
struct provider_result {
  const copy_provider* provider;
  captured_graph graph{};
  std::uint64_t wrong = 0;
  std::vector<double> stream_us{}, graph_us{};

  // Only reductions may run kernels, and they must.
  bool has_error(const bench_case& test_case) const {
    return wrong != 0 ||
           (provider->name == "isthmus" && (graph.kernels > 0) != bench::reduces(test_case.collective));
  }
};

std::vector<provider_result> measure_rank(const device_thread& self, const copy_comparison& comparison,
                                          const bench_case& test_case, int samples) {
  const std::uint64_t bytes = test_case.bytes;
  const int calls = bytes <= (256 << 10) ? 48 : bytes <= (4 << 20) ? 16 : bytes <= (64 << 20) ? 6 : 3;
  std::vector<provider_result> results;
  std::vector<device_call> device_calls;
  for (const copy_provider& provider : comparison.providers()) {
    if (!provider.runs(test_case)) continue;
    const device_call& call = device_calls.emplace_back(comparison.make_call(self, provider, test_case));
    provider_result& entry = results.emplace_back(provider_result{&provider});
    entry.wrong = count_wrong(self, call);
    entry.graph = capture(self, call, calls);
    graph_us(self, call, entry.graph);  // warm-up
  }
  bench::interleave(results.size(), 0, samples, [&](std::size_t i, int) {
    results[i].graph_us.push_back(graph_us(self, device_calls[i], results[i].graph));
    results[i].stream_us.push_back(stream_us(self, device_calls[i], calls));
  });
  for (const provider_result& entry : results) destroy(entry.graph);
  return results;
}

// Records of calls without concurrent work, on a stream and in a graph. Sets `has_error` if a result is wrong, or
// if a provider that promises copies runs kernels.
void measure_alone(const copy_comparison& comparison, const bench_case& test_case, int samples, bool& has_error,
                   nlohmann::json& records) {
  std::vector<provider_result> results;
  comparison.ranks().each([&](const device_thread& self) {
    std::vector<provider_result> own = measure_rank(self, comparison, test_case, samples);
    if (self.is_first()) results = std::move(own);
  });
  std::printf("%-19s %9llu", label_of(test_case).c_str(), static_cast<unsigned long long>(test_case.bytes));
  for (const provider_result& entry : results) {
    if (entry.has_error(test_case)) {
      has_error = true;
      std::printf("WRONG: %s by %s of %llu bytes: %llu wrong elements, %d kernels in the graph\n",
                  label_of(test_case).c_str(), entry.provider->backend.c_str(),
                  static_cast<unsigned long long>(test_case.bytes),
                  static_cast<unsigned long long>(entry.wrong), entry.graph.kernels);
    }
    for (const bool in_graph : {false, true}) {
      nlohmann::json line =
          copy_record(*entry.provider, test_case, comparison.ranks().size(), in_graph ? "graph" : "stream",
                      in_graph ? entry.graph_us : entry.stream_us);
      line["kernels_per_call"] = static_cast<double>(entry.graph.kernels) / (entry.graph.calls + 2);
      line["copies_per_call"] = static_cast<double>(entry.graph.copies) / (entry.graph.calls + 2);
      line["wrong"] = entry.wrong;
      records.push_back(std::move(line));
    }
    std::printf(" | %s%8.2f %8.2f",
                bench::reduces(test_case.collective) ? (entry.provider->label() + ' ').c_str() : "",
                bench::median(entry.stream_us), bench::median(entry.graph_us));
  }
  std::printf("\n");
}

int run(const copy_settings& settings) {
  const int ranks = settings.find_ranks(2);
  if (ranks == 0) return exit_skipped;
  const bool overlaps = settings.rounds > 0;
  copy_comparison comparison(ranks, overlaps ? overlap_bytes : settings.largest(), settings.parsed_variants());
  if (overlaps) comparison.add_bare_copies("");
  for (const std::string& parts : settings.bare_parts) comparison.add_bare_copies(parts);
  const nlohmann::json versions{{"nccl", comparison.nccl_version()}};
  std::printf("%d ranks, NCCL %s; ", ranks, comparison.nccl_version().c_str());
  if (overlaps) {
    std::puts("slowdown of 20 matrix products");
    std::vector<bench_case> test_cases = {copy_case(ISTHMUS_ALLGATHER, true, overlap_bytes),
                                          copy_case(ISTHMUS_ALLGATHER, false, overlap_bytes),
                                          copy_case(ISTHMUS_REDUCE_SCATTER, false, overlap_bytes)};
    std::erase_if(test_cases, [&](const bench_case& each) { return !settings.measures(each); });
    return settings.write(measure_with_products(comparison, test_cases, settings.rounds), versions);
  }
  std::printf("microseconds per call, issued directly and in a graph; * non-default options\n%-29s",
              "collective, bytes");
  for (const copy_provider& provider : comparison.providers()) std::printf(" | %17s", provider.label().c_str());
  std::printf("\n");
  nlohmann::json records = nlohmann::json::array();
  bool has_error = false;
  for (const std::uint64_t bytes : settings.sizes)
    for (const bench_case& test_case :
         {copy_case(ISTHMUS_ALLGATHER, false, bytes), copy_case(ISTHMUS_ALLGATHER, true, bytes),
          copy_case(ISTHMUS_ALLTOALL, false, bytes), copy_case(ISTHMUS_BROADCAST, false, bytes),
          copy_case(ISTHMUS_REDUCE_SCATTER, false, bytes)}) {
      if (!settings.measures(test_case)) continue;
      measure_alone(comparison, test_case, settings.samples, has_error, records);
      settings.write(records, versions);  // a stopped program keeps what it measured so far
    }
  return has_error ? 1 : 0;
}

}  // namespace

void add_copy_engine(CLI::App& app, program& result) {
  const auto settings = std::make_shared<copy_settings>();
  settings->samples = 11;
  settings->sizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20, 256 << 20};
  CLI::App* const subcommand =
      result.add(app, "copy_engine", "the copy engines of Isthmus against NCCL", settings, "--samples",
                 "--sizes", [settings] { return run(*settings); });
  subcommand->add_option("--ranks", settings->ranks, "ranks, one per device (0: all devices)");
  subcommand->add_option("--only", settings->only,
                         "one collective, such as allgather or \"allgather in place\" (default: all)");
  subcommand->add_option("--variants", settings->variants,
                         "additional ALGORITHM:OPTIONS, such as \"push:wait_all_bytes = 0\"");
  subcommand->add_option(
      "--bare", settings->bare_parts,
      "additional bare copies with parts of the protocol, such as \"pull,ranks\": pull (fetch "
      "from the peer), halves (two copies), writes or remote (four writes to own "
      "words or to the peer's words), waits (two waits for words that have "
      "their values), host (a write to host memory), ranks (the ranks wait for each other)");
  subcommand
      ->add_option("--with-products", settings->rounds,
                   "measure with concurrent matrix products, this many samples")
      ->check(CLI::Range(1, 1000));
}

}  // namespace gpu_bench
