// Isthmus under SYCL on NVIDIA devices against NCCL on the queue's own native stream, in one process and one
// run: what a call costs the host, what it costs from call to completion, and whether the host ever waits.
// One thread and one in-order queue a rank; the two take turns; a sample is the maximum over ranks. Needs a
// SYCL runtime with a CUDA adapter (docs/vendor_backends.md); exits with 77 where there is none.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <isthmus/sycl.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "library.hpp"
#include "oracle/inputs.hpp"
#include "native_api.hpp"
#include "xccl_traits.hpp"

namespace {

using isthmus::xccl::nccl_traits;
using steady = std::chrono::steady_clock;
constexpr auto cuda = sycl::backend::ext_oneapi_cuda;

double us_since(steady::time_point start) {
  return std::chrono::duration<double, std::micro>(steady::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json statistics(const std::vector<double>& us) {
  return {{"min", *std::min_element(us.begin(), us.end())},
          {"median", median(us)},
          {"max", *std::max_element(us.begin(), us.end())}};
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// NCCL as a program uses it without Isthmus.
struct nccl {
  isthmus::xccl::dynamic_library library;
  isthmus::xccl::native_functions functions;
  isthmus::xccl::xccl_entry_points entry;
  isthmus::xccl::xccl_unique_id id;
  std::string version;

  nccl() {
    std::string reason;
    library = isthmus::xccl::dynamic_library::open(candidates(nccl_traits::library_search()), reason);
    if (!library) throw std::runtime_error("no NCCL: " + reason);
    if (const std::string missing = functions.load(library, "nccl", true) + entry.load(library); !missing.empty())
      throw std::runtime_error("NCCL lacks " + missing);
    int number = 0;
    functions.get_version(&number);
    version = isthmus::xccl::version_text(number);
    functions.get_unique_id(&id);
  }
};

// One rank: its device, queue, buffers and both communicators.
struct member {
  int rank;
  sycl::queue queue;
  isthmus::communicator* ours;
  isthmus::xccl::native_comm raw = nullptr;
  float* send = nullptr;
  float* recv = nullptr;
  cudaStream_t stream = nullptr;
};

class bench {
 public:
  bench(std::vector<sycl::device> devices, std::size_t largest, int repetitions)
      : m_largest(largest),
        m_repetitions(repetitions),
        m_devices(std::move(devices)),
        m_communicators(isthmus::communicator::all(m_devices)),
        m_barrier(static_cast<std::ptrdiff_t>(m_devices.size())),
        m_times(m_devices.size()) {
    for (std::size_t r = 0; r < m_devices.size(); ++r)
      m_members.push_back({static_cast<int>(r),
                           sycl::queue(m_devices[r], sycl::property::queue::in_order()), &m_communicators[r]});
    each([&](member& self) { start(self); });
  }

  const std::string& nccl_version() const { return m_nccl.version; }
  std::string path() const { return isthmus::detail::path_name(m_communicators[0].path()); }
  std::string explain(std::size_t count) const {
    return m_communicators[0].explain(ISTHMUS_ALLREDUCE, count);
  }

  void check_asynchrony();
  std::vector<nlohmann::json> run(std::size_t bytes);

 private:
  void start(member& self) {
    check(cudaSetDevice(static_cast<int>(sycl::get_native<cuda>(self.queue.get_device()))));
    self.stream = sycl::get_native<cuda>(self.queue);
    isthmus::xccl::xccl_config config;
    config.blocking = 1;
    if (m_nccl.entry.comm_init_rank_config(&self.raw, static_cast<int>(m_members.size()), m_nccl.id, self.rank,
                                           &config) != 0)
      throw std::runtime_error("ncclCommInitRankConfig failed");
    self.send = sycl::malloc_device<float>(m_largest / 4, self.queue);
    self.recv = sycl::malloc_device<float>(m_largest / 4, self.queue);
    std::vector<std::byte> inputs(m_largest);
    oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::flavour::ordinary, 3}, self.rank, 0, inputs);
    self.queue.memcpy(self.send, inputs.data(), m_largest).wait();
  }

  void each(const std::function<void(member&)>& work) {
    std::vector<std::thread> threads;
    for (member& self : m_members)
      threads.emplace_back([&work, &self] {
        try {
          work(self);
        } catch (const std::exception& failure) {
          std::fprintf(stderr, "rank %d: %s\n", self.rank, failure.what());
          std::_Exit(1);  // the other ranks wait for this one
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  void call(member& self, int provider, std::size_t count) {
    if (provider == 1) {
      self.ours->allreduce(self.queue, self.send, self.recv, count);
    } else if (m_nccl.functions.all_reduce(self.send, self.recv, count, 7 /* ncclFloat32 */, 0 /* ncclSum */,
                                           self.raw, self.stream) != 0) {
      throw std::runtime_error("ncclAllReduce failed");
    }
  }

  double slowest(const member& self, double us) {
    m_times[static_cast<std::size_t>(self.rank)] = us;
    m_barrier.arrive_and_wait();
    const double worst = *std::max_element(m_times.begin(), m_times.end());
    m_barrier.arrive_and_wait();
    return worst;
  }

  std::size_t m_largest;
  int m_repetitions;
  std::vector<sycl::device> m_devices;
  std::vector<isthmus::communicator> m_communicators;
  nccl m_nccl;
  std::barrier<> m_barrier;
  std::vector<double> m_times;
  std::vector<member> m_members;
};

// A host function on the native stream holds the queue up; the call must return before it ends, and what
// comes after it on the queue must see the sum.
void bench::check_asynchrony() {
  static std::atomic<bool> produced[64];
  constexpr std::size_t count = 1 << 16;
  each([&](member& self) {
    call(self, 1, count);  // connections are made at the first call
    self.queue.wait();
    produced[self.rank] = false;
    std::vector<float> ones(count, static_cast<float>(self.rank + 1)), result(count, -1);
    float* data = self.recv;
    check(cudaLaunchHostFunc(
        self.stream,
        [](void* flag) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          static_cast<std::atomic<bool>*>(flag)->store(true);
        },
        &produced[self.rank]));
    self.queue.memcpy(data, ones.data(), count * 4);
    self.ours->allreduce(self.queue, data, data, count);
    if (produced[self.rank]) throw std::runtime_error("the call waited for the producer");
    self.queue.memcpy(result.data(), data, count * 4).wait();
    const float expected = static_cast<float>(m_members.size() * (m_members.size() + 1) / 2);
    for (const float value : result)
      if (value != expected) throw std::runtime_error("the consumer did not see the sum");
  });
}

std::vector<nlohmann::json> bench::run(std::size_t bytes) {
  const std::size_t count = bytes / 4;
  std::vector<double> host[2], whole[2], difference;
  std::uint64_t wrong = 0;
  each([&](member& self) {
    // Both must give the same bits before anything is timed.
    std::vector<float> results[2] = {std::vector<float>(count), std::vector<float>(count)};
    for (const int provider : {0, 1}) {
      self.queue.memset(self.recv, 0xa5, bytes).wait();
      call(self, provider, count);
      self.queue.memcpy(results[provider].data(), self.recv, bytes).wait();
    }
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < count; ++i) differing += results[0][i] != results[1][i];
    const double most = slowest(self, static_cast<double>(differing));
    if (self.rank == 0) wrong = static_cast<std::uint64_t>(most);

    const int calls = bytes <= (1 << 20) ? 40 : 8;
    for (int repetition = -2; repetition < m_repetitions; ++repetition) {
      double per_call[2], until_done[2];
      for (const int provider : {repetition & 1, 1 - (repetition & 1)}) {
        self.queue.wait();
        m_barrier.arrive_and_wait();
        std::vector<double> each_call;
        const auto start = steady::now();
        for (int i = 0; i < calls; ++i) {
          const auto begin = steady::now();
          call(self, provider, count);
          each_call.push_back(us_since(begin));
        }
        self.queue.wait();
        until_done[provider] = slowest(self, us_since(start) / calls);
        per_call[provider] = median(each_call);
      }
      const double apart = slowest(self, per_call[1] - per_call[0]);
      for (const int provider : {0, 1}) {
        const double worst = slowest(self, per_call[provider]);
        if (self.rank != 0 || repetition < 0) continue;  // the first ones warm up
        host[provider].push_back(worst);
        whole[provider].push_back(until_done[provider]);
      }
      if (self.rank == 0 && repetition >= 0) difference.push_back(apart);
    }
  });
  std::vector<nlohmann::json> records;
  for (const int provider : {0, 1})
    for (const bool stream : {false, true}) {
      nlohmann::json line = {{"collective", "allreduce"}, {"dtype", "float32"}, {"op", "sum"}, {"bytes", bytes},
                             {"ranks", m_members.size()}, {"provider", provider == 0 ? "nccl" : "isthmus"},
                             {"mode", stream ? (provider == 0 ? "stream" : "sycl_usm") : "host"},
                             {"time_us", statistics(stream ? whole[provider] : host[provider])},
                             {"wrong", provider == 0 ? 0 : wrong}};
      if (provider == 1) line["backend"] = "nccl";
      if (provider == 1 && !stream) line["host_overhead_us"] = median(difference);
      if (provider == 1) line["reason"] = "SYCL path: " + path();
      if (stream) {
        const double bandwidth = static_cast<double>(bytes) / median(whole[provider]) / 1e3;
        line["algbw_gbs"] = bandwidth;
        line["busbw_gbs"] = bandwidth * 2 * static_cast<double>(m_members.size() - 1) / static_cast<double>(m_members.size());
      }
      records.push_back(std::move(line));
    }
  std::printf("%12zu | host us: nccl %7.2f isthmus %7.2f diff %6.2f | until done: nccl %9.2f isthmus %9.2f ratio "
              "%.3f | wrong %llu\n",
              bytes, median(host[0]), median(host[1]), median(difference), median(whole[0]), median(whole[1]),
              median(whole[1]) / median(whole[0]), static_cast<unsigned long long>(wrong));
  std::fflush(stdout);
  return records;
}

std::vector<sycl::device> cuda_devices() {
  std::vector<sycl::device> devices;
  for (const sycl::device& device : sycl::device::get_devices(sycl::info::device_type::gpu))
    if (device.get_backend() == cuda) devices.push_back(device);
  return devices;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Isthmus under SYCL against NCCL on the queue's native stream"};
  int ranks = 0, repetitions = 21;
  std::vector<std::size_t> sizes{128, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20};
  std::string out;
  app.add_option("--ranks", ranks, "ranks, one a device (default: all devices)");
  app.add_option("--repetitions", repetitions, "samples of each figure")->check(CLI::Range(3, 10000));
  app.add_option("--bytes", sizes, "sizes in bytes");
  app.add_option("--out", out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  // The same library on both sides, whatever the rules would take for a size.
  setenv("ISTHMUS_BACKEND", "nccl", 1);
  try {
    std::vector<sycl::device> devices = cuda_devices();
    if (devices.size() < 2 || static_cast<int>(devices.size()) < ranks)
      return std::printf("SKIPPED: %zu CUDA devices under SYCL\n", devices.size()), 77;
    if (ranks > 0) devices.resize(static_cast<std::size_t>(ranks));
    bench bench(devices, *std::max_element(sizes.begin(), sizes.end()), repetitions);
    std::printf("SYCL path %s, NCCL %s\n%s\n", bench.path().c_str(), bench.nccl_version().c_str(),
                bench.explain(32).c_str());
    bench.check_asynchrony();
    std::puts("asynchrony: the call returned before its producer ended, the consumer saw the sum");
    nlohmann::json records = nlohmann::json::array();
    for (const std::size_t bytes : sizes)
      for (nlohmann::json& line : bench.run(bytes)) records.push_back(std::move(line));
    const std::string version = devices[0].get_platform().get_info<sycl::info::platform::version>();
    if (!out.empty())
      std::ofstream(out) << nlohmann::json{{"versions", {{"isthmus", isthmus_version()},
                                                         {"nccl", bench.nccl_version()},
                                                         {"sycl", version}}},
                                           {"records", records}}
                                .dump(1);
    std::fflush(stdout);
    std::_Exit(0);  // the communicators go with the process; the measurement is complete
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "failed: %s\n", failure.what());
    return 1;
  }
}
