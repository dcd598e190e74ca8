// Allreduce by the peer-memory kernels of Isthmus against the default and the symmetric kernels of NCCL:
// captured graphs on the same buffers, with interleaved providers in one run. One host thread drives all
// devices. A sample is the maximum over ranks of (stop - start) / calls; both events are recorded inside the
// graph, after two calls that align the ranks. A result is the median over samples. From 1 MiB on, the two
// forms of two_shot that tensor parallelism uses for long exact tensors are also measured, in place, as
// inference engines call them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "harness/command.hpp"
#include "harness/document.hpp"
#include "harness/patterns.hpp"
#include "p2p_comparison.hpp"

namespace p2p_bench {
namespace {

__global__ void empty_kernel() {}

// Host time per device in microseconds, over 50 calls in a row for all devices. Waits until the
// devices are idle.
template <typename Call>
double host_us(const std::vector<rank_state>& ranks, Call&& call) {
  constexpr int calls = 50;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  for (const rank_state& rank : ranks) check(cudaStreamSynchronize(rank.stream));
  return elapsed.count() / calls / static_cast<double>(ranks.size());
}

// Host cost per device of one tensor-parallel call, and of launching an empty kernel.
nlohmann::json host_cost(const std::vector<rank_state>& ranks) {
  const int size = static_cast<int>(ranks.size());
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  std::vector<void*> pointers;
  for (int rank = 0; rank < size; ++rank) {
    devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    streams.push_back(ranks[rank].stream);
    pointers.push_back(ranks[rank].recv);
  }
  isthmus_tensor_parallel handle = nullptr;
  check(isthmus_tensor_parallel_create(size, devices.data(), streams.data(), nullptr, &handle));
  std::vector<double> samples, empty_samples;
  for (int i = 0; i < 21; ++i) {
    empty_samples.push_back(host_us(ranks, [&] {
      for (int rank = 0; rank < size; ++rank) {
        check(cudaSetDevice(rank));
        empty_kernel<<<1, 32, 0, ranks[rank].stream>>>();
      }
    }));
    samples.push_back(host_us(ranks, [&] {
      check(isthmus_tensor_parallel_allreduce(handle, pointers.data(), 1024, ISTHMUS_FLOAT32,
                                              ISTHMUS_ALL_ACTIVE));
    }));
  }
  isthmus_tensor_parallel_destroy(handle);
  const double median = bench::median(samples), empty_median = bench::median(empty_samples);
  std::printf("host cost per device: tensor-parallel call %.2f us, empty kernel launch %.2f us\n", median,
              empty_median);
  // The record format requires a bandwidth; this one is based on host time.
  nlohmann::json result =
      bench::record_of({"allreduce", "float32", 4096, size, "isthmus", "tensor_parallel", "stream"}, samples,
                       bench::bandwidth_of(ISTHMUS_ALLREDUCE, 4096, size, median));
  result["op"] = "sum";
  result["host_overhead_us"] = median;
  result["bare_launch_us"] = empty_median;
  result["wrong"] = 0;
  return result;
}

}  // namespace
}  // namespace p2p_bench

int main(int argc, char** argv) try {
  CLI::App app{"Compares the peer-memory allreduce of Isthmus with NCCL"};
  int ranks = 0, samples = 25;
  std::string out;
  std::vector<std::uint64_t> sizes{128,       1 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10,
                                   512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20};
  app.add_option("--ranks", ranks, "devices (0: all)");
  app.add_option("--samples", samples, "samples of each provider and size");
  app.add_option("--sizes", sizes, "bytes");
  app.add_option("--out", out, "file for the records");
  CLI11_PARSE(app, argc, argv);
  int device_count = 0;
  if (cudaGetDeviceCount(&device_count) != cudaSuccess || device_count < 2) {
    std::puts("SKIPPED: fewer than two CUDA devices");
    return 77;
  }
  if (ranks == 0) ranks = std::min(device_count, 16);
  p2p_bench::allreduce_comparison comparison(ranks, *std::max_element(sizes.begin(), sizes.end()));
  std::printf("%d ranks, NCCL %s, median us over %d samples of the maximum over ranks\n", ranks,
              comparison.nccl_version().c_str(), samples);
  nlohmann::json records = nlohmann::json::array();
  for (const p2p_bench::type_info& type : p2p_bench::types)
    for (const std::uint64_t bytes : sizes) {
      if (type.type != ISTHMUS_FLOAT32 && bytes != (8 << 10) && bytes != (1 << 20) && bytes != (64 << 20))
        continue;
      for (auto& record : comparison.run(bytes, type, samples)) records.push_back(std::move(record));
    }
  records.push_back(p2p_bench::host_cost(comparison.ranks()));
  bench::write_records(out, bench::command_of(argc, argv),
                       {{"isthmus", isthmus_version()}, {"nccl", comparison.nccl_version()}}, records);
  std::uint64_t wrong = 0;
  for (const auto& record : records) wrong += record.value("wrong", std::uint64_t(0));
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "p2p_bench: %s\n", failure.what());
  return 1;
}
