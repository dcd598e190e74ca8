// Isthmus under SYCL on NVIDIA devices against NCCL on the native stream of the queue, in one process and
// one run: host cost of a call, time to completion, and whether the host ever waits. To separate the cost
// of SYCL, it also measures the same NCCL call in a hand-written native command, and an empty native
// command. One process (or thread) and one in-order queue per rank; providers are interleaved; a sample is
// the maximum over ranks. Needs a SYCL runtime with a CUDA adapter (docs/internals/benchmarks.md); exits
// with 77 if there is none.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <isthmus/sycl.hpp>
#include <stdexcept>
#include <thread>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/fork.hpp"
#include "harness/gpu/device.hpp"
#include "harness/methods.hpp"
#include "harness/patterns.hpp"
#include "oracle/inputs.hpp"

namespace {

constexpr auto cuda = sycl::backend::ext_oneapi_cuda;

// The measured calls. The last two show the cost of a native command without Isthmus: around NCCL, and empty.
enum provider { nccl, isthmus_call, bare_command, empty_command, providers };
constexpr const char* provider_names[providers] = {"nccl", "isthmus", "nccl_in_native_command",
                                                   "empty_native_command"};

double us_since(std::uint64_t start_ns) { return static_cast<double>(bench::steady_ns() - start_ns) / 1e3; }

using bench::median;
using gpu_bench::check;

struct settings {
  int ranks = 0, repetitions = 21;
  bool threads = false;
  std::vector<std::size_t> sizes{128, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20};
  bool rules = false;
  std::string out, command;
};

// One rank: its device, in-order queue, buffers and both communicators.
class rank_bench {
 public:
  rank_bench(const settings& arguments, const bench::team& ranks, const sycl::device& device)
      : m_arguments(arguments),
        m_ranks(ranks),
        m_rank(ranks.rank()),
        m_queue(device, sycl::property::queue::in_order()),
        m_stream(sycl::get_native<cuda>(m_queue)),
        m_isthmus(make_communicator(device)) {
    check(cudaSetDevice(static_cast<int>(sycl::get_native<cuda>(device))));
    bench::nccl_unique_id raw{};
    if (m_rank == 0) raw = m_nccl.unique_id();
    ranks.share(raw);
    m_raw = m_nccl.join(raw, m_rank, arguments.ranks);
    const std::size_t largest = *std::max_element(arguments.sizes.begin(), arguments.sizes.end());
    m_send = sycl::malloc_device<float>(largest / 4, m_queue);
    m_recv = sycl::malloc_device<float>(largest / 4, m_queue);
    std::vector<std::byte> inputs(largest);
    oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, 3}, m_rank, 0, inputs);
    m_queue.memcpy(m_send, inputs.data(), largest).wait();
  }

  void run();

 private:
  isthmus::communicator make_communicator(const sycl::device& device) {
    isthmus::unique_id id{};
    if (m_rank == 0) id = isthmus::make_unique_id();
    m_ranks.share(id);
    return {device, id, m_rank, m_arguments.ranks, {.timeout_s = 30}};
  }
  void call(int provider_index, std::size_t count) {
    switch (provider_index) {
      case nccl: all_reduce(count, m_stream); break;
      case isthmus_call: m_isthmus.allreduce(m_queue, m_send, m_recv, count); break;
      case bare_command:
        m_queue.submit([&](sycl::handler& handler) {
          handler.ext_codeplay_enqueue_native_command([this, count](sycl::interop_handle handle) {
            all_reduce(count, handle.get_native_queue<cuda>());
          });
        });
        break;
      default:
        m_queue.submit([&](sycl::handler& handler) {
          handler.ext_codeplay_enqueue_native_command([](sycl::interop_handle) {});
        });
    }
  }
  void all_reduce(std::size_t count, cudaStream_t stream) {
    bench::check_nccl(m_nccl->all_reduce(m_send, m_recv, count, bench::nccl::native_float32,
                                         bench::nccl::native_sum, m_raw, stream));
  }
  // SYCL does not track the work that NCCL enqueued on its stream.
  void drain() {
    m_queue.wait();
    check(cudaStreamSynchronize(m_stream));
  }
  std::uint64_t compare(std::size_t count);
  void check_asynchrony();
  void measure(std::size_t bytes);
  void record(std::size_t bytes, std::uint64_t wrong);

  const settings& m_arguments;
  const bench::team& m_ranks;
  int m_rank;
  bench::nccl_library m_nccl;
  sycl::queue m_queue;
  cudaStream_t m_stream;
  isthmus::communicator m_isthmus;
  bench::nccl_comm m_raw = nullptr;
  float* m_send = nullptr;
  float* m_recv = nullptr;
  std::atomic<bool> m_produced{false};
  std::vector<double> m_host[providers], m_completion[providers];
  std::vector<double> m_calls[providers], m_difference[providers];  // of this rank; the difference to NCCL
  double m_overhead[providers] = {};                                // over NCCL
  nlohmann::json m_records = nlohmann::json::array();
};

// A host function blocks the native stream. The call must return before the function ends, and later work on
// the queue must see the sum.
void rank_bench::check_asynchrony() {
  constexpr std::size_t count = 1 << 10;
  call(isthmus_call, count);  // the first call establishes connections
  m_queue.wait();
  auto* ones = sycl::malloc_host<float>(count, m_queue);
  std::fill_n(ones, count, static_cast<float>(m_rank + 1));
  check(cudaLaunchHostFunc(
      m_stream,
      [](void* flag) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        static_cast<std::atomic<bool>*>(flag)->store(true);
      },
      &m_produced));
  m_queue.memcpy(m_recv, ones, count * 4);
  m_isthmus.allreduce(m_queue, m_recv, m_recv, count);
  if (m_produced)
    throw std::runtime_error(
        "isthmus::communicator::allreduce waited for the producer; it must not block the host");
  m_queue.memcpy(ones, m_recv, count * 4).wait();
  const float expected = static_cast<float>(m_arguments.ranks * (m_arguments.ranks + 1)) / 2;
  for (std::size_t i = 0; i < count; ++i)
    if (ones[i] != expected)
      throw std::runtime_error("the consumer did not see the sum; the queue order is broken");
  sycl::free(ones, m_queue);
}

// The number of elements that differ between the two providers. The output is poisoned before each call.
std::uint64_t rank_bench::compare(std::size_t count) {
  std::vector<float> results[2] = {std::vector<float>(count), std::vector<float>(count)};
  for (const int provider_index : {nccl, isthmus_call}) {
    m_queue.memset(m_recv, 0xa5, count * 4).wait();
    call(provider_index, count);
    drain();
    m_queue.memcpy(results[provider_index].data(), m_recv, count * 4).wait();
  }
  std::uint64_t differing = 0;
  for (std::size_t i = 0; i < count; ++i) differing += results[0][i] != results[1][i];
  return m_ranks.sum(differing);
}

void rank_bench::measure(std::size_t bytes) {
  for (auto* samples : {m_host, m_completion, m_calls, m_difference})
    for (int provider_index = 0; provider_index < providers; ++provider_index) samples[provider_index].clear();
  const int calls = bytes <= (1 << 20) ? 40 : 8;
  bench::interleave(providers, 2, m_arguments.repetitions, [&](std::size_t i, int round) {
    drain();
    m_ranks.barrier();
    std::vector<double> each_call;
    const std::uint64_t start = bench::steady_ns();
    for (int repeat = 0; repeat < calls; ++repeat) {
      const std::uint64_t begin = bench::steady_ns();
      call(static_cast<int>(i), bytes / 4);
      each_call.push_back(us_since(begin));
    }
    drain();
    const double completion_us = m_ranks.slowest(us_since(start) / calls);
    const double call_us = median(each_call), host_us = m_ranks.slowest(call_us);
    if (round < 0) return;
    m_completion[i].push_back(completion_us);
    m_host[i].push_back(host_us);
    m_calls[i].push_back(call_us);
  });
  for (int provider_index = 0; provider_index < providers; ++provider_index)
    for (std::size_t round = 0; round < m_calls[nccl].size(); ++round)
      m_difference[provider_index].push_back(m_calls[provider_index][round] - m_calls[nccl][round]);
  // The maximum over ranks of the median; a maximum over single samples would add the noise of the slower rank.
  for (int provider_index = 0; provider_index < providers; ++provider_index)
    m_overhead[provider_index] = m_ranks.slowest(median(m_difference[provider_index]));
}

void rank_bench::record(std::size_t bytes, std::uint64_t wrong) {
  const std::string path = isthmus::detail::path_name(m_isthmus.path());
  const auto explanation = nlohmann::json::parse(m_isthmus.explain(ISTHMUS_ALLREDUCE, bytes / 4));
  const std::string backend = explanation.at("selection").at("backend");
  const char* placement = m_arguments.threads ? ", ranks in threads" : ", ranks in processes";
  for (int provider_index = 0; provider_index < providers; ++provider_index)
    for (const bool stream : {false, true}) {
      const std::vector<double>& us = stream ? m_completion[provider_index] : m_host[provider_index];
      const char* const mode = !stream ? "host" : provider_index == isthmus_call ? "sycl_usm" : "stream";
      nlohmann::json line = bench::record_of(
          {"allreduce", "float32", bytes, m_arguments.ranks},
          {provider_names[provider_index], provider_index == isthmus_call ? backend : "", mode, {}, us},
          bench::bandwidth_of(ISTHMUS_ALLREDUCE, bytes, m_arguments.ranks, median(us)));
      line["op"] = "sum";
      line["reason"] = "SYCL path " + path + placement;
      line["wrong"] = provider_index == isthmus_call ? wrong : 0;
      if (provider_index != nccl && !stream) line["host_overhead_us"] = m_overhead[provider_index];
      m_records.push_back(std::move(line));
    }
  std::printf(
      "%12zu | host us: nccl %6.2f isthmus %+6.2f nccl in a native command %+6.2f empty command %6.2f | "
      "complete: "
      "nccl %9.2f isthmus %9.2f ratio %.3f | wrong %llu\n",
      bytes, median(m_host[nccl]), m_overhead[isthmus_call], m_overhead[bare_command],
      median(m_host[empty_command]), median(m_completion[nccl]), median(m_completion[isthmus_call]),
      median(m_completion[isthmus_call]) / median(m_completion[nccl]), static_cast<unsigned long long>(wrong));
  std::fflush(stdout);
}

void rank_bench::run() {
  if (m_rank == 0)
    std::printf("NCCL %s, ranks in %s\n%s\n", m_nccl.version().c_str(),
                m_arguments.threads ? "threads" : "processes",
                m_isthmus.explain(ISTHMUS_ALLREDUCE, 32).c_str());
  check_asynchrony();
  if (m_rank == 0)
    std::puts("asynchrony: the call returned before its producer ended, and the consumer saw the sum");
  for (const std::size_t bytes : m_arguments.sizes) {
    const std::uint64_t wrong = compare(bytes / 4);
    measure(bytes);
    if (m_rank == 0) record(bytes, wrong);
  }
  if (m_rank != 0) return;
  const auto platform = m_queue.get_device().get_platform();
  bench::write_records(m_arguments.out, m_arguments.command,
                       {{"isthmus", isthmus_version()},
                        {"nccl", m_nccl.version()},
                        {"sycl", platform.get_info<sycl::info::platform::version>()}},
                       std::move(m_records));
}

std::vector<sycl::device> cuda_devices() {
  std::vector<sycl::device> devices;
  for (const sycl::device& device : sycl::device::get_devices(sycl::info::device_type::gpu))
    if (device.get_backend() == cuda) devices.push_back(device);
  return devices;
}

constexpr int skipped = 77;

// Runs one rank. On failure it ends the process, because the other ranks must not wait.
int run_rank(const settings& arguments, const bench::team& ranks) {
  try {
    const std::vector<sycl::device> devices = cuda_devices();
    if (static_cast<int>(devices.size()) < arguments.ranks) {
      std::printf("SKIPPED: SYCL has %zu CUDA devices for %d ranks\n", devices.size(), arguments.ranks);
      std::fflush(stdout);
      std::_Exit(skipped);
    }
    auto* self = new rank_bench(arguments, ranks, devices[static_cast<std::size_t>(ranks.rank())]);
    self->run();  // never destroyed: the measurement is complete, and the process ends
    ranks.barrier();
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %d failed: %s\n", ranks.rank(), failure.what());
    std::_Exit(1);
  }
}

int run_threads(const settings& arguments) {
  const bench::thread_ranks threads(arguments.ranks);
  threads.each([&](const bench::team& ranks) { run_rank(arguments, ranks); });
  std::fflush(stdout);
  std::_Exit(0);
}

// Forks before CUDA and SYCL start, because they do not survive a fork.
int run_processes(const settings& arguments) {
  constexpr bool is_bound = false;  // unbound: the threads of the runtimes need cores as well
  return bench::fork_ranks(
      arguments.ranks, 120, [&](const bench::team& ranks) { return run_rank(arguments, ranks); }, is_bound);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Compares Isthmus under SYCL with NCCL on the native stream of the queue"};
  settings arguments;
  app.add_option("--ranks", arguments.ranks, "ranks, one per device")->required()->check(CLI::Range(1, 64));
  app.add_option("--repetitions", arguments.repetitions, "samples per result")->check(CLI::Range(3, 10000));
  app.add_option("--bytes", arguments.sizes, "sizes in bytes");
  app.add_flag("--threads", arguments.threads, "ranks are threads of one process (default: processes)");
  app.add_flag("--rules", arguments.rules,
               "Isthmus uses the backends of its rules (default: NCCL, as the peer)");
  app.add_option("--out", arguments.out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  if (!arguments.rules) setenv("ISTHMUS_BACKEND", "nccl", 1);
  arguments.command = bench::command_of(argc, argv);
  return arguments.threads ? run_threads(arguments) : run_processes(arguments);
}
