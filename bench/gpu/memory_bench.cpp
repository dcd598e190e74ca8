// Host cost of device memory and speed of copies. Measures host memory before and during allocations of 4 GiB
// and of 90% of every GPU; copies between devices against the raw copy engine; and staged copies against the
// two links that they use. The order of providers alternates between rounds; results are medians.
#include <isthmus/memory.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"

namespace {

constexpr isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};
isthmus_device cuda(int ordinal) { return {ISTHMUS_PLATFORM_CUDA, ordinal}; }

using gpu_bench::check;

// ---- host memory ---------------------------------------------------------------------------------------

// The value of a line of a /proc file, in MiB.
double mib_of(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(key, 0) == 0) return std::stod(line.substr(key.size())) / 1024;
  throw std::runtime_error(std::string(file) + " has no " + key);
}

struct host_memory {
  double rss_mib = mib_of("/proc/self/status", "VmRSS:");
  double available_mib = 0;
  // The median of several readings, because other processes start and end.
  host_memory() {
    std::vector<double> readings;
    for (int i = 0; i < 15; ++i) {
      readings.push_back(mib_of("/proc/meminfo", "MemAvailable:"));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::nth_element(readings.begin(), readings.begin() + 7, readings.end());
    available_mib = readings[7];
  }
};

std::string provider_of(const void* block) {
  isthmus_memory_info info;
  return isthmus_memory_query(block, &info) == ISTHMUS_SUCCESS ? info.provider : "symmetric_heap";
}

// Allocates a block on each of the first `gpus`, touches it, measures, and releases it.
nlohmann::json host_cost(int gpus, const std::string& label, const std::function<std::uint64_t(int)>& gpu_bytes,
                         const std::function<std::vector<void*>()>& allocate,
                         const std::function<void(const std::vector<void*>&)>& release) {
  const host_memory memory_before;
  const auto start = std::chrono::steady_clock::now();
  const auto blocks = allocate();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  for (int gpu = 0; gpu < gpus; ++gpu) {
    check(cudaSetDevice(gpu));
    check(cudaMemset(blocks[static_cast<std::size_t>(gpu)], 0x5a, gpu_bytes(gpu)));
    check(cudaDeviceSynchronize());
  }
  const host_memory memory_during;
  const std::string provider = provider_of(blocks[0]);
  release(blocks);
  const double rss = (memory_during.rss_mib - memory_before.rss_mib) / gpus;
  const double available = (memory_during.available_mib - memory_before.available_mib) / gpus;
  std::printf("%d GPU(s), %-14s %7.2f GiB each by %-14s: RSS %+8.1f MiB, MemAvailable %+8.1f MiB per GPU\n",
              gpus, label.c_str(), static_cast<double>(gpu_bytes(0)) / (1u << 30), provider.c_str(), rss,
              available);
  auto record =
      bench::record_of({"allocate", "uint8", gpu_bytes(0), gpus, "isthmus", provider, "host"}, {us}, {});
  record["view"] = label;
  record["host_rss_mib_per_gpu"] = rss;
  record["host_available_mib_per_gpu"] = available;
  return record;
}

std::uint64_t max_block_bytes(int gpu) {
  check(cudaSetDevice(gpu));
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<std::uint64_t>(0.9 * static_cast<double>(free_bytes)) >> 21 << 21;
}

nlohmann::json plain_cost(int gpus, const std::string& label,
                          const std::function<std::uint64_t(int)>& gpu_bytes) {
  isthmus_memory_options options{};
  options.struct_bytes = sizeof options;
  options.unpooled = 1;
  return host_cost(
      gpus, label, gpu_bytes,
      [&] {
        std::vector<void*> blocks(static_cast<std::size_t>(gpus));
        for (int gpu = 0; gpu < gpus; ++gpu)
          check(isthmus_memory_allocate_device(cuda(gpu), gpu_bytes(gpu), &options,
                                               &blocks[static_cast<std::size_t>(gpu)]));
        return blocks;
      },
      [&](const std::vector<void*>& blocks) {
        for (int gpu = 0; gpu < gpus; ++gpu)
          check(isthmus_memory_free_device(cuda(gpu), blocks[static_cast<std::size_t>(gpu)]));
      });
}

// Grows a block from 45% to 90% of the free memory. A copy would not fit.
nlohmann::json growth_cost(int gpu) {
  isthmus_memory_options options{};
  options.struct_bytes = sizeof options;
  options.growable = 1;
  const std::uint64_t max_bytes = max_block_bytes(gpu), first = max_bytes / 2 >> 21 << 21;
  void* block = nullptr;
  check(isthmus_memory_allocate_device(cuda(gpu), first, &options, &block));
  check(cudaMemset(block, 0x5a, first));
  check(cudaDeviceSynchronize());
  const host_memory memory_before;
  const auto start = std::chrono::steady_clock::now();
  check(isthmus_memory_resize_device(cuda(gpu), &block, max_bytes));
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  check(cudaMemset(static_cast<std::byte*>(block) + first, 0x77, max_bytes - first));
  check(cudaDeviceSynchronize());
  const host_memory memory_during;
  // Both ends of the old and of the new part.
  const std::vector<std::pair<std::uint64_t, unsigned char>> ends = {
      {0, 0x5a}, {first - 1, 0x5a}, {first, 0x77}, {max_bytes - 1, 0x77}};
  std::uint64_t wrong = 0;
  for (const auto& [at, value] : ends) {
    unsigned char actual = 0;
    check(cudaMemcpy(&actual, static_cast<std::byte*>(block) + at, 1, cudaMemcpyDefault));
    wrong += actual != value ? 1 : 0;
  }
  const std::string provider = provider_of(block);
  check(isthmus_memory_free_device(cuda(gpu), block));
  const double rss = memory_during.rss_mib - memory_before.rss_mib,
               available = memory_during.available_mib - memory_before.available_mib;
  std::printf("growing from %.2f to %.2f GiB: %.1f ms, %llu wrong, RSS %+.1f MiB, MemAvailable %+.1f MiB\n",
              static_cast<double>(first) / (1u << 30), static_cast<double>(max_bytes) / (1u << 30), us / 1e3,
              static_cast<unsigned long long>(wrong), rss, available);
  auto record = bench::record_of({"resize", "uint8", max_bytes, 1, "isthmus", provider, "host"}, {us}, {});
  record["from_bytes"] = first;
  record["view"] = "45 % to 90 % of free, growable";
  record["host_rss_mib_per_gpu"] = rss;
  record["host_available_mib_per_gpu"] = available;
  record["wrong"] = wrong;
  return record;
}

// Blocks of the symmetric heap are mapped into all peers but must not cost more.
nlohmann::json heap_cost(int gpus, std::uint64_t bytes) {
  std::vector<isthmus_device> devices;
  for (int gpu = 0; gpu < gpus; ++gpu) devices.push_back(cuda(gpu));
  std::vector<isthmus_communicator> ranks(devices.size());
  check(isthmus_communicator_create_all(gpus, devices.data(), nullptr, ranks.data()));
  const auto each = [&](const std::function<void(std::size_t)>& work) {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) threads.emplace_back([&, rank] { work(rank); });
  };
  const auto allocate = [&](std::uint64_t count) {
    std::vector<void*> blocks(ranks.size());
    each(
        [&](std::size_t rank) { check(isthmus_memory_allocate_symmetric(ranks[rank], count, &blocks[rank])); });
    return blocks;
  };
  const auto release = [&](const std::vector<void*>& blocks) {
    each([&](std::size_t rank) { check(isthmus_memory_free_symmetric(ranks[rank], blocks[rank])); });
  };
  release(allocate(1 << 22));  // one-time setup by the first block is not part of the cost
  auto record =
      host_cost(gpus, "symmetric heap", [&](int) { return bytes; }, [&] { return allocate(bytes); }, release);
  for (const auto rank : ranks) check(isthmus_communicator_destroy(rank));
  return record;
}

// ---- copies --------------------------------------------------------------------------------------------

struct copy_place {
  explicit copy_place(int gpu, std::uint64_t bytes) : gpu(gpu) {
    check(cudaSetDevice(gpu));
    check(cudaMalloc(&memory, bytes));
    check(cudaMallocHost(&pinned, bytes));
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    std::mt19937_64 random(static_cast<unsigned>(gpu));
    for (std::uint64_t i = 0; i < bytes / 8; ++i) static_cast<std::uint64_t*>(pinned)[i] = random();
    check(cudaMemcpy(memory, pinned, bytes, cudaMemcpyDefault));
  }
  ~copy_place() {
    cudaSetDevice(gpu);
    cudaFree(memory);
    cudaFreeHost(pinned);
    cudaStreamDestroy(stream);
  }
  copy_place(const copy_place&) = delete;
  copy_place& operator=(const copy_place&) = delete;

  int gpu;
  void* memory = nullptr;
  void* pinned = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

struct contender {
  std::string provider, backend;
  copy_place* timed_place;  // its stream times the copy
  std::function<void()> copy;
  std::vector<double> us;
};

double time_once(contender& entry, int repeats) {
  check(cudaSetDevice(entry.timed_place->gpu));
  check(cudaEventRecord(entry.timed_place->begin, entry.timed_place->stream));
  for (int i = 0; i < repeats; ++i) entry.copy();
  check(cudaEventRecord(entry.timed_place->end, entry.timed_place->stream));
  check(cudaEventSynchronize(entry.timed_place->end));
  float ms = 0;
  check(cudaEventElapsedTime(&ms, entry.timed_place->begin, entry.timed_place->end));
  return 1e3 * static_cast<double>(ms) / repeats;
}

isthmus_copy_options options_of(isthmus_copy_path path, bool push) {
  isthmus_copy_options options{};
  options.struct_bytes = sizeof options;
  options.path = path;
  options.push = push ? 1 : 0;
  return options;
}

// The number of 8-byte words of `to` that differ from `from` after copying over a poisoned `to`.
std::uint64_t wrong_words(contender& entry, copy_place& from, copy_place& to, std::uint64_t bytes) {
  check(cudaSetDevice(to.gpu));
  check(cudaMemset(to.memory, 0xcd, bytes));
  check(cudaDeviceSynchronize());
  entry.copy();
  check(cudaSetDevice(entry.timed_place->gpu));
  check(cudaStreamSynchronize(entry.timed_place->stream));
  std::vector<std::uint64_t> sent(bytes / 8), actual(bytes / 8);
  check(cudaMemcpy(sent.data(), from.memory, bytes, cudaMemcpyDefault));
  check(cudaMemcpy(actual.data(), to.memory, bytes, cudaMemcpyDefault));
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) wrong += sent[i] != actual[i] ? 1 : 0;
  return wrong;
}

std::vector<contender> contenders(copy_place& from, copy_place& to, std::uint64_t bytes) {
  const auto isthmus_copy = [&, bytes](isthmus_copy_path path, bool push) {
    return [&, bytes, options = options_of(path, push), stream = push ? from.stream : to.stream] {
      check(isthmus_memory_copy(to.memory, cuda(to.gpu), from.memory, cuda(from.gpu), bytes, &options, stream));
    };
  };
  const auto peer_copy = [&, bytes](cudaStream_t stream) {
    return [&, bytes, stream] {
      check(cudaMemcpyPeerAsync(to.memory, to.gpu, from.memory, from.gpu, bytes, stream));
    };
  };
  const auto link_copy = [bytes](void* target, const void* source, cudaStream_t stream) {
    return [=] { check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream)); };
  };
  return {{"cuda", "peer, pull", &to, peer_copy(to.stream), {}},
          {"cuda", "peer, push", &from, peer_copy(from.stream), {}},
          {"isthmus", "direct, pull", &to, isthmus_copy(ISTHMUS_COPY_DIRECT, false), {}},
          {"isthmus", "direct, push", &from, isthmus_copy(ISTHMUS_COPY_DIRECT, true), {}},
          {"cuda", "link down", &from, link_copy(from.pinned, from.memory, from.stream), {}},
          {"cuda", "link up", &to, link_copy(to.memory, to.pinned, to.stream), {}},
          {"isthmus", "staged", &to, isthmus_copy(ISTHMUS_COPY_STAGED, false), {}}};
}

void measure_copies(copy_place& from, copy_place& to, std::uint64_t bytes, int rounds,
                    nlohmann::json& records) {
  auto all = contenders(from, to, bytes);
  const int repeats = static_cast<int>(std::clamp<std::uint64_t>((256u << 20) / bytes, 2, 20));
  std::vector<std::uint64_t> wrong(all.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].backend.rfind("link", 0) != 0) wrong[i] = wrong_words(all[i], from, to, bytes);
  for (auto& entry : all) time_once(entry, 1);
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto& entry = all[round % 2 == 0 ? i : all.size() - 1 - i];
      entry.us.push_back(time_once(entry, repeats));
    }
  const auto gbs = [&](const contender& entry) {
    return static_cast<double>(bytes) / bench::median(entry.us) / 1e3;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    records.push_back(bench::record_of({"copy", "uint8", bytes, 2, all[i].provider, all[i].backend, "stream"},
                                       all[i].us, {gbs(all[i]), gbs(all[i])}));
    records.back()["wrong"] = wrong[i];
  }
  const double raw = std::max(gbs(all[0]), gbs(all[1])), slower = std::min(gbs(all[4]), gbs(all[5]));
  std::printf("%11llu | %7.1f %7.1f | %7.1f %7.1f %6.3f | %6.1f %6.1f | %6.1f %6.3f | %llu\n",
              static_cast<unsigned long long>(bytes), gbs(all[0]), gbs(all[1]), gbs(all[2]), gbs(all[3]),
              std::max(gbs(all[2]), gbs(all[3])) / raw, gbs(all[4]), gbs(all[5]), gbs(all[6]),
              gbs(all[6]) / slower, static_cast<unsigned long long>(wrong[2] + wrong[3] + wrong[6]));
  std::fflush(stdout);
}

nlohmann::json copies(int rounds) {
  nlohmann::json records = nlohmann::json::array();
  const std::uint64_t max_bytes = 1u << 30;
  copy_place from(0, max_bytes), to(1, max_bytes);
  for (const auto& [device, peer] : {std::pair(0, 1), std::pair(1, 0)}) {
    check(cudaSetDevice(device));
    if (const auto code = cudaDeviceEnablePeerAccess(peer, 0); code != cudaErrorPeerAccessAlreadyEnabled)
      check(code);
    (void)cudaGetLastError();
  }
  std::printf("%11s | %7s %7s | %7s %7s %6s | %6s %6s | %6s %6s | wrong   (GB/s)\n", "bytes", "peer<", "peer>",
              "direct<", "direct>", "ratio", "down", "up", "staged", "ratio");
  for (const std::uint64_t bytes :
       {std::uint64_t{8} << 10, std::uint64_t{64} << 10, std::uint64_t{1} << 20, std::uint64_t{4} << 20,
        std::uint64_t{16} << 20, std::uint64_t{64} << 20, std::uint64_t{256} << 20, max_bytes})
    measure_copies(from, to, bytes, rounds, records);
  return records;
}

nlohmann::json host_costs(int gpus) {
  nlohmann::json records = nlohmann::json::array();
  const std::uint64_t four_gib = std::uint64_t{4} << 30;
  const auto warm = [](int) { return std::uint64_t{64} << 20; };
  for (int count = 1; count <= gpus; count *= 2) {
    plain_cost(count, "warm-up", warm);  // warms up contexts and the kernel of memset
    records.push_back(plain_cost(count, "4 GiB", [&](int) { return four_gib; }));
    std::vector<std::uint64_t> max_bytes;
    for (int gpu = 0; gpu < count; ++gpu) max_bytes.push_back(max_block_bytes(gpu));
    records.push_back(
        plain_cost(count, "90 % of free", [&](int gpu) { return max_bytes[static_cast<std::size_t>(gpu)]; }));
  }
  records.push_back(growth_cost(0));
  records.push_back(heap_cost(gpus, four_gib));
  return records;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures the host cost of device memory and copies between devices"};
  int rounds = 11;
  std::string out;
  app.add_option("--rounds", rounds, "samples of each copy")->check(CLI::Range(3, 1000));
  app.add_option("--out", out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return std::puts("SKIPPED: no CUDA device"), 77;
  try {
    nlohmann::json records = host_costs(gpus);
    if (gpus > 1)
      for (auto& record : copies(rounds)) records.push_back(std::move(record));
    bench::write_records(out, bench::command_of(argc, argv), {{"isthmus", isthmus_version()}},
                         std::move(records));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "failed: %s\n", failure.what());
    return 1;
  }
}
