// Isthmus over NCCL against NCCL alone, in one process and one run: host cost of a call, and device time inside
// a captured graph. One thread per rank; providers are interleaved. A sample is the maximum over ranks, a
// result the median over samples.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "bare_nccl.hpp"
#include "check.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"
#include "harness/patterns.hpp"
#include "harness/threads.hpp"
#include "inputs.hpp"
#include "pairs.hpp"

namespace gpu_bench {
namespace {

using steady = std::chrono::steady_clock;

// Samples of one provider, each from the slowest rank.
struct sample_series {
  std::vector<double> us;
  double median() const { return bench::median(us); }
};

struct case_result {
  sample_series host[3], graph[3];  // NCCL, Isthmus, NCCL again
  // Overhead of a call over NCCL, from interleaved calls: the maximum over ranks of the median difference. A
  // maximum over single samples would add the noise of the slower rank.
  double host_overhead_us = 0, host_repeat_us = 0;  // of Isthmus, and of a second series of NCCL calls
  std::uint64_t wrong = 0;
};

class nccl_comparison {
 public:
  nccl_comparison(int ranks, std::uint64_t largest, int repetitions);
  case_result run(const bench_case& test_case);
  int size() const { return static_cast<int>(m_ranks.size()); }
  std::string nccl_version() const { return m_nccl.version(); }

 private:
  void start_rank(rank_state& rank, const isthmus::nccl::native_unique_id& id);
  void run_rank(const bench_case& test_case, rank_state& rank, case_result& result);
  std::vector<std::byte> output_of(const bench_case& test_case, rank_state& rank,
                                   const std::function<int()>& call);
  void compare(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls, case_result& result);
  void time_host(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls,
                 case_result& result);
  void time_graph(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls,
                  case_result& result);
  double slowest(const rank_state& rank, double us) const { return m_threads[rank.rank].slowest(us); }
  void sync_ranks(const rank_state& rank) const { m_threads[rank.rank].barrier(); }
  void each(const std::function<void(rank_state&)>& work);

  int m_repetitions;
  std::uint64_t m_largest;
  bare_nccl m_nccl;
  std::vector<rank_state> m_ranks;
  bench::thread_ranks m_threads;
};

nccl_comparison::nccl_comparison(int ranks, std::uint64_t largest, int repetitions)
    : m_repetitions(repetitions),
      m_largest(largest),
      m_ranks(static_cast<std::size_t>(ranks)),
      m_threads(ranks) {
  // This measures the overhead over NCCL, so it forces NCCL; selection would often choose peer memory.
  setenv("ISTHMUS_RULE", "platform=cuda use=nccl", 1);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
  std::vector<isthmus_communicator> communicators(m_ranks.size());
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.timeout_s = 60;
  check(isthmus_communicator_create_all(ranks, devices.data(), &options, communicators.data()));
  const isthmus::nccl::native_unique_id id = m_nccl.unique_id();
  for (int rank = 0; rank < ranks; ++rank) {
    rank_state& state = m_ranks[static_cast<std::size_t>(rank)];
    state.rank = state.device = rank;
    state.size = ranks;
    state.native = &m_nccl.functions();
    state.communicator = communicators[static_cast<std::size_t>(rank)];
  }
  each([&](rank_state& rank) { start_rank(rank, id); });
}

void nccl_comparison::start_rank(rank_state& rank, const isthmus::nccl::native_unique_id& id) {
  check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  rank.raw = m_nccl.join(id, rank.rank, rank.size);
  const std::uint64_t send_bytes = largest_send(m_largest, rank.size),
                      recv_bytes = largest_recv(m_largest, rank.size);
  check(cudaMalloc(reinterpret_cast<void**>(&rank.send), send_bytes));
  check(cudaMalloc(reinterpret_cast<void**>(&rank.recv), recv_bytes));
  check(cudaMalloc(reinterpret_cast<void**>(&rank.byte), 1));
  fill_repeated(rank.send, send_bytes, rank.rank);
}

void nccl_comparison::each(const std::function<void(rank_state&)>& work) {
  m_threads.each([&](const bench::team& thread) {
    rank_state& rank = m_ranks[static_cast<std::size_t>(thread.rank())];
    check(cudaSetDevice(rank.device));
    work(rank);
  });
}

void expect_ok(int code, const bench_case& test_case) {
  if (code != 0)
    throw std::runtime_error(std::string(test_case.name) + " failed with code " + std::to_string(code));
}

// The first and last 4 MiB of the output of a call, which overwrites poisoned memory.
std::vector<std::byte> nccl_comparison::output_of(const bench_case& test_case, rank_state& rank,
                                                  const std::function<int()>& call) {
  const std::uint64_t bytes = output_bytes(test_case, rank);
  check(cudaMemsetAsync(rank.recv, 0xa5, bytes, rank.stream));
  expect_ok(call(), test_case);
  check(cudaStreamSynchronize(rank.stream));
  const std::uint64_t part = std::min<std::uint64_t>(bytes, 4 << 20);
  std::vector<std::byte> host(2 * part);
  check(cudaMemcpy(host.data(), rank.recv, part, cudaMemcpyDeviceToHost));
  check(cudaMemcpy(host.data() + part, rank.recv + bytes - part, part, cudaMemcpyDeviceToHost));
  return host;
}

void nccl_comparison::compare(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls,
                              case_result& result) {
  const std::vector<std::byte> raw = output_of(test_case, rank, [&] { return calls.raw(); });
  const std::vector<std::byte> isthmus_output = output_of(test_case, rank, [&] { return calls.isthmus(); });
  std::uint64_t wrong = 0;
  for (std::size_t offset = 0; offset + 4 <= raw.size(); offset += 4)
    if (std::memcmp(&raw[offset], &isthmus_output[offset], 4) != 0) ++wrong;
  const double max_wrong = slowest(rank, static_cast<double>(wrong));
  if (rank.rank == 0) result.wrong = static_cast<std::uint64_t>(max_wrong);
}

// The three series alternate call by call, so that disturbances affect all of them. A sample is the median over
// its calls, so that one preempted call does not count.
void nccl_comparison::time_host(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls,
                                case_result& result) {
  const int calls_per_sample = test_case.bytes <= (1 << 20) ? 42 : 12;
  const auto time_call = [&](int provider) {
    const auto start = steady::now();
    expect_ok(provider == 1 ? calls.isthmus() : calls.raw(), test_case);
    return std::chrono::duration<double, std::micro>(steady::now() - start).count();
  };
  sample_series difference, repeat;
  for (int repetition = -1; repetition < m_repetitions; ++repetition) {
    sample_series us[3];
    check(cudaStreamSynchronize(rank.stream));
    sync_ranks(rank);
    for (int i = 0; i < calls_per_sample; ++i)
      for (int position = 0; position < 3; ++position)
        us[(i + position) % 3].us.push_back(time_call((i + position) % 3));
    double slow[3];
    for (const int provider : {0, 1, 2}) slow[provider] = slowest(rank, us[provider].median());
    if (repetition < 0) continue;  // the first repetition warms up
    difference.us.push_back(us[1].median() - us[0].median());
    repeat.us.push_back(us[2].median() - us[0].median());
    if (rank.rank != 0) continue;
    for (const int provider : {0, 1, 2}) result.host[provider].us.push_back(slow[provider]);
  }
  const double overhead = slowest(rank, difference.median()),
               repeated_overhead = slowest(rank, repeat.median());
  if (rank.rank == 0) result.host_overhead_us = overhead, result.host_repeat_us = repeated_overhead;
  check(cudaStreamSynchronize(rank.stream));
}

void nccl_comparison::time_graph(const bench_case& test_case, rank_state& rank, const nccl_call_pair& calls,
                                 case_result& result) {
  const int calls_per_graph = test_case.bytes <= (64 << 10) ? 64 : test_case.bytes <= (4 << 20) ? 16 : 4;
  cudaGraphExec_t graphs[3];
  for (const int provider : {0, 1, 2}) {
    cudaGraph_t graph;
    sync_ranks(rank);
    check(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls_per_graph; ++i)
      expect_ok(provider == 1 ? calls.isthmus() : calls.raw(), test_case);
    check(cudaStreamEndCapture(rank.stream, &graph));
    check(cudaGraphInstantiate(&graphs[provider], graph, 0));
    check(cudaGraphDestroy(graph));
  }
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  const auto sample = [&](int provider) {
    sync_ranks(rank);
    // A raw call first aligns the ranks on the device.
    rank.native->all_reduce(rank.byte, rank.byte, 1, 1, 0, rank.raw, rank.stream);
    check(cudaEventRecord(start, rank.stream));
    check(cudaGraphLaunch(graphs[provider], rank.stream));
    check(cudaEventRecord(stop, rank.stream));
    check(cudaStreamSynchronize(rank.stream));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop));
    return slowest(rank, ms * 1e3 / calls_per_graph);
  };
  for (const int provider : {0, 1, 2}) sample(provider);
  for (int i = 0; i < m_repetitions; ++i)
    for (int position = 0; position < 3; ++position) {
      const int provider = (i + position) % 3;
      const double us = sample(provider);
      if (rank.rank == 0) result.graph[provider].us.push_back(us);
    }
  check(cudaEventDestroy(start));
  check(cudaEventDestroy(stop));
  for (cudaGraphExec_t graph : graphs) check(cudaGraphExecDestroy(graph));
}

void nccl_comparison::run_rank(const bench_case& test_case, rank_state& rank, case_result& result) {
  const nccl_call_pair calls(test_case, rank);
  compare(test_case, rank, calls, result);
  time_host(test_case, rank, calls, result);
  time_graph(test_case, rank, calls, result);
}

case_result nccl_comparison::run(const bench_case& test_case) {
  case_result result;
  each([&](rank_state& rank) { run_rank(test_case, rank, result); });
  return result;
}

nlohmann::json record(const bench_case& test_case, int size, const case_result& result, int provider,
                      bool graph) {
  const sample_series& times = graph ? result.graph[provider] : result.host[provider];
  const std::uint64_t bytes = test_case.collective == ISTHMUS_BARRIER ? 0 : test_case.bytes;
  nlohmann::json line =
      bench::record_of({test_case.name, "float32", bytes, size, provider == 0 ? "nccl" : "isthmus",
                        provider == 0 ? "" : "nccl", graph ? "graph" : "host"},
                       times.us, bench::bandwidth_of(test_case.collective, bytes, size, times.median()));
  line["op"] = "sum";
  line["wrong"] = provider == 0 ? 0 : result.wrong;
  // The spread of a second series of the same NCCL calls. Smaller differences are noise.
  if (provider == 0 && graph) line["repeat_us"] = bench::spread(result.graph[2].us);
  if (!graph && provider == 1) line["host_overhead_us"] = result.host_overhead_us;
  if (!graph && provider == 0) line["host_overhead_us"] = result.host_repeat_us;
  return line;
}

// Summary over all cases for the targets of docs/internals/nccl.md.
class result_summary {
 public:
  void add(const bench_case& test_case, const case_result& result) {
    const bool pair = test_case.collective == ISTHMUS_SEND;  // a send and a recv in one group
    (pair ? m_pairs : m_calls).us.push_back(result.host_overhead_us);
    m_repeats.us.push_back(result.host_repeat_us);
    (test_case.bytes >= 1 << 20 ? m_large : m_small)
        .us.push_back(result.graph[1].median() / result.graph[0].median());
    m_wrong += result.wrong;
  }
  void print() const {
    print("host, one call over NCCL, us", m_calls, 0.3);
    print("host, send and recv over NCCL, us", m_pairs, 0.3);
    print("host, NCCL over itself, us", m_repeats, 0.3);
    print("graph from 1 MiB over NCCL, ratio", m_large, 1.01);
    print("graph below 1 MiB over NCCL, ratio", m_small, 1.01);
    std::printf("wrong words: %llu\n", static_cast<unsigned long long>(m_wrong));
  }

 private:
  static void print(const char* name, const sample_series& values, double target) {
    if (values.us.empty()) return;
    const auto is_met =
        std::count_if(values.us.begin(), values.us.end(), [&](double value) { return value <= target; });
    std::printf("%-36s median %.3f, min %.3f, max %.3f; %td of %zu at most %g\n", name, values.median(),
                *std::min_element(values.us.begin(), values.us.end()),
                *std::max_element(values.us.begin(), values.us.end()), is_met, values.us.size(), target);
  }

  sample_series m_calls, m_pairs, m_repeats, m_large, m_small;
  std::uint64_t m_wrong = 0;
};

}  // namespace
}  // namespace gpu_bench

int main(int argc, char** argv) {
  CLI::App app{"Compares Isthmus over NCCL with NCCL alone"};
  int ranks = 0, repetitions = 21;
  std::vector<std::uint64_t> sizes{128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 128 << 20};
  std::string out;
  app.add_option("--ranks", ranks, "ranks, one per device (default: all devices)");
  app.add_option("--repetitions", repetitions, "samples per result")->check(CLI::Range(3, 10000));
  app.add_option("--bytes", sizes, "sizes in bytes");
  app.add_option("--out", out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  if (ranks == 0 && cudaGetDeviceCount(&ranks) != cudaSuccess) ranks = 0;
  if (ranks < 2) return std::puts("SKIPPED: fewer than two CUDA devices"), 77;
  try {
    gpu_bench::nccl_comparison comparison(ranks, *std::max_element(sizes.begin(), sizes.end()), repetitions);
    nlohmann::json records = nlohmann::json::array();
    gpu_bench::result_summary summary;
    std::printf("%-15s %10s | %9s %9s %7s %7s | %9s %9s %7s %7s | wrong\n", "collective", "bytes", "nccl host",
                "isthmus", "diff", "a/a", "nccl graph", "isthmus", "ratio", "a/a");
    for (const std::uint64_t bytes : sizes)
      for (const auto& test_case : gpu_bench::cases(bytes)) {
        if (test_case.collective == ISTHMUS_BARRIER && bytes != sizes.front()) continue;
        const gpu_bench::case_result result = comparison.run(test_case);
        summary.add(test_case, result);
        for (const bool graph : {false, true})
          for (const int provider : {0, 1})
            records.push_back(gpu_bench::record(test_case, ranks, result, provider, graph));
        std::printf("%-15s %10llu | %9.2f %9.2f %7.2f %7.2f | %9.2f %9.2f %7.3f %7.3f | %llu\n", test_case.name,
                    static_cast<unsigned long long>(bytes), result.host[0].median(), result.host[1].median(),
                    result.host_overhead_us, result.host_repeat_us, result.graph[0].median(),
                    result.graph[1].median(), result.graph[1].median() / result.graph[0].median(),
                    result.graph[2].median() / result.graph[0].median(),
                    static_cast<unsigned long long>(result.wrong));
        std::fflush(stdout);
      }
    summary.print();
    bench::write_records(out, bench::command_of(argc, argv),
                         {{"isthmus", isthmus_version()}, {"nccl", comparison.nccl_version()}},
                         std::move(records));
    std::fflush(stdout);
    std::_Exit(0);  // the measurement is complete; the process end frees the communicators
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "failed: %s\n", failure.what());
    return 1;
  }
}
