// Benchmark of plain device memory allocation: the pool of Isthmus against the native calls of the driver,
// interleaved in one process. Platforms: cuda, and host (whose native call is mmap).
//
//   allocation_bench --platform cuda --largest 4M,16M --out out.json
#include <isthmus/memory.h>
#include <isthmus/tools.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <isthmus/error.hpp>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/cuda_driver.hpp"
#include "harness/document.hpp"
#include "harness/methods.hpp"

namespace {

using isthmus::detail::check;

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// The native allocator of the platform, without Isthmus.
struct native_memory {
  virtual ~native_memory() = default;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* pointer, std::size_t bytes) = 0;
  virtual void fill(void* pointer, unsigned char value, std::size_t bytes) = 0;
  virtual unsigned char read(const void* pointer) = 0;
};

struct host_memory final : native_memory {
  void* allocate(std::size_t bytes) override {
    void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pointer == MAP_FAILED ? nullptr : pointer;
  }
  void free(void* pointer, std::size_t bytes) override { munmap(pointer, bytes); }
  void fill(void* pointer, unsigned char value, std::size_t bytes) override {
    std::memset(pointer, value, bytes);
  }
  unsigned char read(const void* pointer) override { return *static_cast<const unsigned char*>(pointer); }
};

struct cuda_memory final : native_memory {
  explicit cuda_memory(int ordinal) : m_driver(ordinal) {}
  void* allocate(std::size_t bytes) override {
    unsigned long long pointer = 0;
    return m_allocate(&pointer, bytes) == 0 ? reinterpret_cast<void*>(pointer) : nullptr;
  }
  void free(void* pointer, std::size_t) override { m_free(reinterpret_cast<unsigned long long>(pointer)); }
  void fill(void* pointer, unsigned char value, std::size_t bytes) override {
    m_driver.call<int(unsigned long long, unsigned char, std::size_t)>(
        "cuMemsetD8_v2", reinterpret_cast<unsigned long long>(pointer), value, bytes);
  }
  unsigned char read(const void* pointer) override {
    unsigned char value = 0;
    m_driver.call<int(void*, unsigned long long, std::size_t)>(
        "cuMemcpyDtoH_v2", &value, reinterpret_cast<unsigned long long>(pointer), 1);
    return value;
  }

 private:
  bench::cuda_driver m_driver;
  int (*m_allocate)(unsigned long long*,
                    std::size_t) = m_driver.find<int(unsigned long long*, std::size_t)>("cuMemAlloc_v2");
  int (*m_free)(unsigned long long) = m_driver.find<int(unsigned long long)>("cuMemFree_v2");
};

// One way to allocate device memory.
struct allocation_method {
  std::string provider, mode;
  std::function<void*(std::size_t)> allocate;
  std::function<void(void*, std::size_t)> free;
};

allocation_method isthmus_method(isthmus_device device, bool pooled) {
  const isthmus_memory_options options{
      .struct_bytes = sizeof options, .unpooled = pooled ? 0 : 1, .growable = 0, .native_context = nullptr};
  return {"isthmus", pooled ? "pool" : "unpooled",
          [=](std::size_t bytes) {
            void* pointer = nullptr;
            check(isthmus_memory_allocate_device(device, bytes, &options, &pointer));
            return pointer;
          },
          [=](void* pointer, std::size_t) { check(isthmus_memory_free_device(device, pointer)); }};
}

// The number of unused bytes that the pool may keep. Fails if there is no pool, because there is nothing
// to measure then.
std::uint64_t pool_keep_bytes(isthmus_device device) {
  std::string explanation(4096, '\0');
  check(isthmus_memory_explain(device, explanation.data(), explanation.size(), nullptr));
  const nlohmann::json providers = nlohmann::json::parse(explanation.c_str())["providers"];
  for (const nlohmann::json& entry : providers)
    if (entry["available"].get<bool>() && entry["pool"].is_object()) return entry["pool"]["keep_bytes"];
  fail("no memory provider has a pool: " + providers.dump());
}

// Sizes from 256 bytes to the largest, with the same number in each power of two.
std::vector<std::size_t> make_random_sizes(std::size_t count, std::size_t largest) {
  std::mt19937 engine(20261121);
  std::uniform_real_distribution<double> exponent(8, std::log2(static_cast<double>(largest)));
  std::vector<std::size_t> sizes(count);
  for (std::size_t& size : sizes) size = static_cast<std::size_t>(std::exp2(exponent(engine)));
  return sizes;
}

// The time of a call in microseconds. Pattern "each": every block is freed before the next is allocated. Pattern "all": all blocks are alive at the
// same time and are freed in another order.
double call_us(const allocation_method& method, const std::vector<std::size_t>& sizes, bool frees_immediately,
               const std::vector<std::size_t>& order) {
  std::vector<void*> blocks(sizes.size());
  const std::uint64_t start = bench::steady_ns();
  if (frees_immediately) {
    for (std::size_t size : sizes) method.free(method.allocate(size), size);
  } else {
    for (std::size_t i = 0; i < sizes.size(); ++i) blocks[i] = method.allocate(sizes[i]);
    for (std::size_t i : order) method.free(blocks[i], sizes[i]);
  }
  return static_cast<double>(bench::steady_ns() - start) / 1e3 / static_cast<double>(sizes.size());
}

// Counts blocks that overlap: fills each live block with its own value, then reads both ends of all blocks.
std::uint64_t count_wrong(const allocation_method& method, native_memory& native,
                          const std::vector<std::size_t>& sizes) {
  std::vector<unsigned char*> blocks;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(static_cast<unsigned char*>(method.allocate(sizes[i])));
    native.fill(blocks[i], static_cast<unsigned char>(i % 255 + 1), sizes[i]);
  }
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto value = static_cast<unsigned char>(i % 255 + 1);
    wrong += (native.read(blocks[i]) != value) + (native.read(blocks[i] + sizes[i] - 1) != value);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) method.free(blocks[i], sizes[i]);
  return wrong;
}

nlohmann::json record(const std::string& collective, const allocation_method& method,
                      const std::string& pattern, const std::vector<double>& us, std::uint64_t bytes) {
  nlohmann::json result =
      bench::record_of({collective, "uint8", bytes, 1, method.provider, "", method.mode}, us, {});
  result["pattern"] = pattern;
  return result;
}

double median_of(const nlohmann::json& record) { return record["time_us"]["median"]; }

// Interleaves the methods, so that changes of the machine affect all of them.
void measure_sizes(const std::vector<allocation_method>& methods, native_memory& native, int rounds,
                   std::size_t largest, nlohmann::json& records) {
  const std::vector<std::size_t> sizes = make_random_sizes(1000, largest);
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::uint64_t bytes = 0;
  for (std::size_t size : sizes) bytes += size;
  for (const bool frees_immediately : {true, false}) {
    std::vector<std::vector<double>> us(methods.size());
    bench::interleave(methods.size(), 1, rounds, [&](std::size_t i, int round) {  // pools start empty
      const double call = call_us(methods[i], sizes, frees_immediately, order);
      if (round >= 0) us[i].push_back(call);
    });
    for (std::size_t i = 0; i < methods.size(); ++i) {
      records.push_back(record("allocate_free", methods[i], frees_immediately ? "each" : "all", us[i], bytes));
      if (!frees_immediately) records.back()["wrong"] = count_wrong(methods[i], native, sizes);
      records.back()["largest"] = largest;
      records.back()["driver_over_this"] =
          i == 0 ? 1.0 : median_of(records[records.size() - 1 - i]) / median_of(records.back());
      std::printf("up to %9zu bytes, %-5s %-12s %-10s %9.3f us per alloc + free  %8.1f x\n", largest,
                  frees_immediately ? "each" : "all", methods[i].provider.c_str(), methods[i].mode.c_str(),
                  median_of(records.back()), records.back()["driver_over_this"].get<double>());
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Measures the cost of allocating plain device memory");
  std::string platform = "cuda", out;
  int ordinal = 0, rounds = 9;
  std::vector<std::size_t> largest = {4U << 20U};
  app.add_option("--platform", platform, "cuda or host")->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--device", ordinal, "device ordinal");
  app.add_option("--rounds", rounds, "samples of 1,000 allocations")->check(CLI::Range(1, 1000));
  app.add_option("--largest", largest, "largest sizes, one measurement each; the smallest size is 256 bytes")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(512, 1 << 30));
  app.add_option("--out", out, "JSON file with the records");
  CLI11_PARSE(app, count, arguments);
  try {
    const bool cuda = platform == "cuda";
    const isthmus_device device{cuda ? ISTHMUS_PLATFORM_CUDA : ISTHMUS_PLATFORM_HOST, ordinal};
    std::unique_ptr<native_memory> native;
    if (cuda)
      native = std::make_unique<cuda_memory>(ordinal);
    else
      native = std::make_unique<host_memory>();
    const std::vector<allocation_method> methods = {
        {cuda ? "cuda_driver" : "mmap", cuda ? "cuMemAlloc" : "mmap",
         [&](std::size_t bytes) {
           void* pointer = native->allocate(bytes);
           if (pointer == nullptr)
             fail("the driver has no memory left for " + std::to_string(bytes) + " bytes");
           return pointer;
         },
         [&](void* pointer, std::size_t bytes) { native->free(pointer, bytes); }},
        isthmus_method(device, true),
        isthmus_method(device, false)};
    const std::uint64_t keep_bytes = pool_keep_bytes(device);
    nlohmann::json records = nlohmann::json::array();
    for (const std::size_t bytes : largest) measure_sizes(methods, *native, rounds, bytes, records);
    for (nlohmann::json& entry : records)
      if (entry["mode"] == "pool") entry["pool_keep_bytes"] = keep_bytes;
    check(isthmus_memory_trim(device));
    bench::write_records(out, bench::command_of(count, arguments), {{"isthmus", isthmus_version()}},
                         std::move(records));
    std::printf("%llu live blocks\n", static_cast<unsigned long long>(isthmus_memory_live_blocks()));
    return isthmus_memory_live_blocks() == 0 ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "allocation_bench: %s\n", failure.what());
    return 2;
  }
}
