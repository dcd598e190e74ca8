// Host cost of device memory and speed of copies. Measures host memory before and during allocations of 4 GiB
// and of 90% of every GPU; copies between devices against the raw copy engine; and staged copies against the
// two links that they use.
#include <isthmus/memory.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "gpu_bench.hpp"
#include "harness/clock.hpp"
#include "harness/gpu/device.hpp"
#include "harness/methods.hpp"

namespace gpu_bench {
namespace {

isthmus_device cuda(int ordinal) { return {ISTHMUS_PLATFORM_CUDA, ordinal}; }

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
    available_mib = bench::median(readings);
  }
};

// The growth of host memory since `before`, in MiB per GPU.
struct host_growth {
  double rss_mib, available_mib;
  host_growth(const host_memory& before, int gpus) {
    const host_memory now;
    rss_mib = (now.rss_mib - before.rss_mib) / gpus;
    available_mib = (now.available_mib - before.available_mib) / gpus;
  }
};

double time_us(const std::function<void()>& call) {
  const std::uint64_t start = bench::steady_ns();
  call();
  return static_cast<double>(bench::steady_ns() - start) / 1e3;
}

// Fills a part of a block on the current device, which makes the driver back it with memory.
void touch(void* block, std::uint64_t first, std::uint64_t bytes, int value) {
  check(cudaMemset(static_cast<std::byte*>(block) + first, value, bytes));
  check(cudaDeviceSynchronize());
}

std::string provider_of(const void* block) {
  isthmus_memory_info info;
  return isthmus_memory_query(block, &info) == ISTHMUS_SUCCESS ? info.provider : "symmetric_heap";
}

nlohmann::json cost_record(const bench::measured_operation& operation, const std::string& provider, double us,
                           const std::string& label, const host_growth& growth) {
  nlohmann::json record = bench::record_of(operation, {"isthmus", provider, "host", {}, {us}}, {});
  record["view"] = label;
  record["host_rss_mib_per_gpu"] = growth.rss_mib;
  record["host_available_mib_per_gpu"] = growth.available_mib;
  return record;
}

// Allocates a block on each of the first `gpus`, touches it, measures, and releases it.
nlohmann::json host_cost(int gpus, const std::string& label, const std::function<std::uint64_t(int)>& gpu_bytes,
                         const std::function<std::vector<void*>()>& allocate,
                         const std::function<void(const std::vector<void*>&)>& release) {
  const host_memory memory_before;
  std::vector<void*> blocks;
  const double us = time_us([&] { blocks = allocate(); });
  for (int gpu = 0; gpu < gpus; ++gpu) {
    check(cudaSetDevice(gpu));
    touch(blocks[static_cast<std::size_t>(gpu)], 0, gpu_bytes(gpu), 0x5a);
  }
  const host_growth growth(memory_before, gpus);
  const std::string provider = provider_of(blocks[0]);
  release(blocks);
  std::printf("%d GPU(s), %-14s %7.2f GiB each by %-14s: RSS %+8.1f MiB, MemAvailable %+8.1f MiB per GPU\n",
              gpus, label.c_str(), static_cast<double>(gpu_bytes(0)) / (1u << 30), provider.c_str(),
              growth.rss_mib, growth.available_mib);
  return cost_record({"allocate", "uint8", gpu_bytes(0), gpus}, provider, us, label, growth);
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
  touch(block, 0, first, 0x5a);
  const host_memory memory_before;
  const double us = time_us([&] { check(isthmus_memory_resize_device(cuda(gpu), &block, max_bytes)); });
  touch(block, first, max_bytes - first, 0x77);
  const host_growth growth(memory_before, 1);
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
  std::printf("growing from %.2f to %.2f GiB: %.1f ms, %llu wrong, RSS %+.1f MiB, MemAvailable %+.1f MiB\n",
              static_cast<double>(first) / (1u << 30), static_cast<double>(max_bytes) / (1u << 30), us / 1e3,
              static_cast<unsigned long long>(wrong), growth.rss_mib, growth.available_mib);
  nlohmann::json record =
      cost_record({"resize", "uint8", max_bytes, 1}, provider, us, "45 % to 90 % of free, growable", growth);
  record["from_bytes"] = first;
  record["wrong"] = wrong;
  return record;
}

// Blocks of the symmetric heap are mapped into all peers but must not cost more.
nlohmann::json heap_cost(int gpus, std::uint64_t bytes) {
  const std::vector<isthmus_communicator> ranks = isthmus_communicators(0, gpus, "");
  const bench::thread_ranks threads(gpus);
  const auto allocate = [&](std::uint64_t count) {
    std::vector<void*> blocks(ranks.size());
    threads.each([&](const bench::team& self) {
      const auto own = static_cast<std::size_t>(self.rank());
      check(isthmus_memory_allocate_symmetric(ranks[own], count, &blocks[own]));
    });
    return blocks;
  };
  const auto release = [&](const std::vector<void*>& blocks) {
    threads.each([&](const bench::team& self) {
      const auto own = static_cast<std::size_t>(self.rank());
      check(isthmus_memory_free_symmetric(ranks[own], blocks[own]));
    });
  };
  release(allocate(1 << 22));  // one-time setup by the first block is not part of the cost
  nlohmann::json record =
      host_cost(gpus, "symmetric heap", [&](int) { return bytes; }, [&] { return allocate(bytes); }, release);
  for (const auto rank : ranks) check(isthmus_communicator_destroy(rank));
  return record;
}

// ---- copies --------------------------------------------------------------------------------------------

// The memory of one device of a copy.
struct copy_place {
  copy_place(const device_lane& lane, std::uint64_t bytes) : gpu(lane.rank), lane(lane) {
    check(cudaSetDevice(gpu));
    check(cudaMalloc(&memory, bytes));
    check(cudaMallocHost(&pinned, bytes));
    std::mt19937_64 random(static_cast<unsigned>(gpu));
    for (std::uint64_t i = 0; i < bytes / 8; ++i) static_cast<std::uint64_t*>(pinned)[i] = random();
    check(cudaMemcpy(memory, pinned, bytes, cudaMemcpyDefault));
  }
  ~copy_place() {
    cudaFree(memory);
    cudaFreeHost(pinned);
  }
  copy_place(const copy_place&) = delete;
  copy_place& operator=(const copy_place&) = delete;

  int gpu;
  const device_lane& lane;
  void* memory = nullptr;
  void* pinned = nullptr;
};

struct copy_method : bench::method {
  const device_lane* lane;  // its stream times the copy
};

double time_once(const copy_method& entry, int repeats) {
  const device_lane& lane = *entry.lane;
  check(cudaSetDevice(lane.rank));
  check(cudaEventRecord(lane.start, lane.stream));
  for (int i = 0; i < repeats; ++i) entry.run();
  check(cudaEventRecord(lane.stop, lane.stream));
  check(cudaEventSynchronize(lane.stop));
  return elapsed_us(lane.start, lane.stop) / repeats;
}

isthmus_copy_options options_of(isthmus_copy_path path, bool push) {
  isthmus_copy_options options{};
  options.struct_bytes = sizeof options;
  options.path = path;
  options.push = push ? 1 : 0;
  return options;
}

// The number of 8-byte words of `to` that differ from `from` after copying over a poisoned `to`.
std::uint64_t wrong_words(const copy_method& entry, copy_place& from, copy_place& to, std::uint64_t bytes) {
  check(cudaSetDevice(to.gpu));
  check(cudaMemset(to.memory, 0xcd, bytes));
  check(cudaDeviceSynchronize());
  entry.run();
  check(cudaSetDevice(entry.lane->rank));
  check(cudaStreamSynchronize(entry.lane->stream));
  std::vector<std::uint64_t> sent(bytes / 8), actual(bytes / 8);
  check(cudaMemcpy(sent.data(), from.memory, bytes, cudaMemcpyDefault));
  check(cudaMemcpy(actual.data(), to.memory, bytes, cudaMemcpyDefault));
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) wrong += sent[i] != actual[i] ? 1 : 0;
  return wrong;
}

std::vector<copy_method> copy_methods(copy_place& from, copy_place& to, std::uint64_t bytes) {
  const auto isthmus_copy = [&, bytes](isthmus_copy_path path, bool push) {
    return [&, bytes, options = options_of(path, push), stream = push ? from.lane.stream : to.lane.stream] {
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
  return {{{"cuda", "peer, pull", "stream", peer_copy(to.lane.stream)}, &to.lane},
          {{"cuda", "peer, push", "stream", peer_copy(from.lane.stream)}, &from.lane},
          {{"isthmus", "direct, pull", "stream", isthmus_copy(ISTHMUS_COPY_DIRECT, false)}, &to.lane},
          {{"isthmus", "direct, push", "stream", isthmus_copy(ISTHMUS_COPY_DIRECT, true)}, &from.lane},
          {{"cuda", "link down", "stream", link_copy(from.pinned, from.memory, from.lane.stream)}, &from.lane},
          {{"cuda", "link up", "stream", link_copy(to.memory, to.pinned, to.lane.stream)}, &to.lane},
          {{"isthmus", "staged", "stream", isthmus_copy(ISTHMUS_COPY_STAGED, false)}, &to.lane}};
}

void measure_copies(copy_place& from, copy_place& to, std::uint64_t bytes, int rounds,
                    nlohmann::json& records) {
  auto all = copy_methods(from, to, bytes);
  const int repeats = static_cast<int>(std::clamp<std::uint64_t>((256u << 20) / bytes, 2, 20));
  std::vector<std::uint64_t> wrong(all.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].backend.rfind("link", 0) != 0) wrong[i] = wrong_words(all[i], from, to, bytes);
  bench::interleave(all.size(), 1, rounds, [&](std::size_t i, int round) {
    const double us = time_once(all[i], round < 0 ? 1 : repeats);
    if (round >= 0) all[i].us.push_back(us);
  });
  const auto gbs = [&](const copy_method& entry) {
    return static_cast<double>(bytes) / bench::median(entry.us) / 1e3;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    records.push_back(bench::record_of({"copy", "uint8", bytes, 2}, all[i], {gbs(all[i]), gbs(all[i])}));
    records.back()["wrong"] = wrong[i];
  }
  const double raw = std::max(gbs(all[0]), gbs(all[1])), slower = std::min(gbs(all[4]), gbs(all[5]));
  std::printf("%11llu | %7.1f %7.1f | %7.1f %7.1f %6.3f | %6.1f %6.1f | %6.1f %6.3f | %llu\n",
              static_cast<unsigned long long>(bytes), gbs(all[0]), gbs(all[1]), gbs(all[2]), gbs(all[3]),
              std::max(gbs(all[2]), gbs(all[3])) / raw, gbs(all[4]), gbs(all[5]), gbs(all[6]),
              gbs(all[6]) / slower, static_cast<unsigned long long>(wrong[2] + wrong[3] + wrong[6]));
}

void measure_copies(int rounds, nlohmann::json& records) {
  const std::uint64_t max_bytes = 1u << 30;
  const bench::thread_ranks single_thread(1);
  const device_thread devices(single_thread[0], 0, 2);
  copy_place from(devices.lanes()[0], max_bytes), to(devices.lanes()[1], max_bytes);
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

int run(const common_settings& settings) {
  const int gpus = settings.find_ranks(1);
  if (gpus == 0) return exit_skipped;
  nlohmann::json records = host_costs(gpus);
  if (gpus > 1) measure_copies(settings.samples, records);
  return settings.write(records);
}

}  // namespace

void add_memory(CLI::App& app, program& result) {
  const auto settings = std::make_shared<common_settings>();
  settings->samples = 11;
  result.add(app, "memory", "host cost of device memory, and copies between devices", settings, "--rounds", "",
             [settings] { return run(*settings); });
}

}  // namespace gpu_bench
