// Soak test: for some minutes it runs mixed operations and checks every element, with short-lived
// communicators, many communicators at a time, and more ranks than cores. Memory and descriptors must not grow.
//   soak [--minutes M] [--ranks N] [--out RECORDS]
#include <isthmus/isthmus.h>
#include <isthmus/memory.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/harness/command.hpp"
#include "bench/harness/document.hpp"
#include "topology/rank_arguments.hpp"
#include "topology/topology.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

struct usage {
  double heap_mb;  // allocated and not freed; caches of the allocator and of threads do not count
  double resident_mb, shared_mb;
  std::size_t descriptors, threads;
};

std::size_t count(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

usage measure_usage() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0, shared = 0;
  file >> size >> resident >> shared;
  const double page_mb = static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
  const struct mallinfo2 heap = mallinfo2();
  return {static_cast<double>(heap.uordblks + heap.hblkhd) / 1e6, (resident - shared) * page_mb,
          shared * page_mb, count("/proc/self/fd"), count("/proc/self/task")};
}

void check(isthmus_status status, const char* function) {
  if (status != ISTHMUS_SUCCESS)
    throw std::runtime_error(std::string(function) + ": " + topology::last_error().message);
}

// A communicator whose ranks are threads of this process.
class communicator_group {
 public:
  explicit communicator_group(int size) : m_handles(static_cast<std::size_t>(size)) {
    const std::vector<isthmus_device> devices(m_handles.size(), isthmus_device{ISTHMUS_PLATFORM_HOST, 0});
    isthmus_communicator_options options{};
    options.struct_bytes = sizeof options;
    options.timeout_s = 120;
    check(isthmus_communicator_create_all(size, devices.data(), &options, m_handles.data()), "create_all");
  }
  ~communicator_group() {
    for (const isthmus_communicator each : m_handles) isthmus_communicator_destroy(each);
  }
  communicator_group(const communicator_group&) = delete;
  communicator_group& operator=(const communicator_group&) = delete;
  int size() const { return static_cast<int>(m_handles.size()); }
  isthmus_communicator operator[](int rank) const { return m_handles[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<isthmus_communicator> m_handles;
};

struct call_statistics {
  std::atomic<std::uint64_t> calls{0}, wrong{0};
};

std::int64_t value_of(std::uint64_t call, int rank, std::uint64_t i) {
  return static_cast<std::int64_t>(call * 31 + static_cast<std::uint64_t>(rank) * 7 + i % 101);
}

// Runs `calls` operations of one rank, the same on all ranks.
void operate(isthmus_communicator handle, int rank, int size, std::uint64_t seed, int calls,
             call_statistics& done) {
  std::mt19937_64 random(seed);
  const auto ranks = static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> send, recv;
  for (int n = 0; n < calls; ++n) {
    const std::uint64_t call = random(), max_elements = random() % 16 == 0 ? 20'000 : 600;
    const std::uint64_t elements = 1 + random() % max_elements;
    const int root = static_cast<int>(random() % ranks);
    send.resize(elements * ranks);
    for (std::uint64_t i = 0; i < send.size(); ++i) send[i] = value_of(call, rank, i);
    recv.assign(elements * ranks, -1);
    std::uint64_t received = elements;
    std::vector<std::int64_t> expected(elements * ranks, -1);
    switch (random() % 4) {
      case 0:
        check(
            isthmus_allreduce(send.data(), recv.data(), elements, ISTHMUS_INT64, ISTHMUS_SUM, handle, nullptr),
            "allreduce");
        for (std::uint64_t i = 0; i < elements; ++i) {
          expected[i] = 0;
          for (int r = 0; r < size; ++r) expected[i] += value_of(call, r, i);
        }
        break;
      case 1:
        check(isthmus_broadcast(send.data(), recv.data(), elements, ISTHMUS_INT64, root, handle, nullptr),
              "broadcast");
        for (std::uint64_t i = 0; i < elements; ++i) expected[i] = value_of(call, root, i);
        break;
      case 2:
        check(isthmus_allgather(send.data(), recv.data(), elements, ISTHMUS_INT64, handle, nullptr),
              "allgather");
        received = elements * ranks;
        for (std::uint64_t i = 0; i < received; ++i)
          expected[i] = value_of(call, static_cast<int>(i / elements), i % elements);
        break;
      default:
        check(isthmus_alltoall(send.data(), recv.data(), elements, ISTHMUS_INT64, handle, nullptr), "alltoall");
        received = elements * ranks;
        for (std::uint64_t i = 0; i < received; ++i)
          expected[i] = value_of(call, static_cast<int>(i / elements),
                                 static_cast<std::uint64_t>(rank) * elements + i % elements);
    }
    ++done.calls;
    if (recv != expected) ++done.wrong;
  }
}

void operate_all(const communicator_group& ranks, std::uint64_t seed, int calls, call_statistics& done) {
  topology::run_on_each_rank(ranks.size(), [&](int rank) {
    try {
      operate(ranks[rank], rank, ranks.size(), seed, calls, done);
    } catch (const std::exception& failure) {
      std::printf("soak: rank %d: %s\n", rank, failure.what());
      ++done.wrong;
    }
  });
}

void use_heap(const communicator_group& ranks) {
  topology::run_on_each_rank(ranks.size(), [&](int rank) {
    void* heap_block = nullptr;
    check(isthmus_memory_allocate_symmetric(ranks[rank], 1 << 20, &heap_block), "allocate_symmetric");
    check(isthmus_memory_free_symmetric(ranks[rank], heap_block), "free");
  });
}

void print(const char* label, double minutes, std::uint64_t calls, std::uint64_t created, const usage& used) {
  std::printf(
      "%-6s %6.1f min %10llu calls %6llu communicators  %7.2f MB of heap %7.1f MB private %6.1f MB shared %4zu "
      "descriptors %3zu "
      "threads\n",
      label, minutes, static_cast<unsigned long long>(calls), static_cast<unsigned long long>(created),
      used.heap_mb, used.resident_mb, used.shared_mb, used.descriptors, used.threads);
  std::fflush(stdout);
}

struct soak {
  double minutes;
  int ranks;
  std::string out, command;  // record file, may be empty
  call_statistics done{};
  std::uint64_t created = 0, seed = 1;

  std::vector<double> rounds_us{};

  // One round: 64 communicators at a time, one with many ranks, and ten short-lived ones.
  void round() {
    {
      std::vector<std::unique_ptr<communicator_group>> groups;
      for (int i = 0; i < 64; ++i) groups.push_back(std::make_unique<communicator_group>(2));
      for (const auto& each : groups) operate_all(*each, ++seed, 4, done);
      created += 64;
    }
    {
      const communicator_group large_group(ranks);
      operate_all(large_group, ++seed, 12, done);
      ++created;
    }
    for (int i = 0; i < 10; ++i) {
      const communicator_group pair(2 + i % 3);
      operate_all(pair, ++seed, 20, done);
      use_heap(pair);
      ++created;
    }
  }

  int run() {
    const auto begin = clock_type::now();
    const auto elapsed_minutes = [&] {
      return std::chrono::duration<double>(clock_type::now() - begin).count() / 60;
    };
    for (int i = 0; i < 2; ++i) round();  // warm-up: allocators and caches reach their size
    const usage first = measure_usage();
    print("warm", elapsed_minutes(), done.calls, created, first);
    double next = elapsed_minutes() + std::max(0.5, minutes / 20);
    while (elapsed_minutes() < minutes) {
      const double minutes_before = elapsed_minutes();
      round();
      rounds_us.push_back((elapsed_minutes() - minutes_before) * 60e6);
      if (elapsed_minutes() < next) continue;
      next = elapsed_minutes() + std::max(0.5, minutes / 20);
      print("", elapsed_minutes(), done.calls, created, measure_usage());
    }
    const usage last = measure_usage();
    print("end", elapsed_minutes(), done.calls, created, last);
    const double heap_growth = last.heap_mb - first.heap_mb;
    const bool is_flat = heap_growth < 1 && last.shared_mb < first.shared_mb + 1 &&
                         last.descriptors <= first.descriptors && last.threads <= first.threads;
    std::printf("soak: %llu wrong, %s (%+.2f MB of heap, %+ld descriptors)\n",
                static_cast<unsigned long long>(done.wrong.load()), is_flat ? "flat" : "GROWS", heap_growth,
                static_cast<long>(last.descriptors) - static_cast<long>(first.descriptors));
    record(first, last, elapsed_minutes());
    return done.wrong == 0 && is_flat ? 0 : 1;
  }

  void record(const usage& first, const usage& last, double elapsed_minutes) const {
    if (out.empty() || rounds_us.empty()) return;
    nlohmann::json result =
        bench::record_of({"soak", "int64", 0, ranks, "isthmus", "shm", "host"}, rounds_us, {});
    result["minutes"] = elapsed_minutes;
    result["calls"] = done.calls.load();
    result["communicators"] = created;
    result["wrong"] = done.wrong.load();
    result["heap_mb_more"] = last.heap_mb - first.heap_mb;
    result["shared_mb_more"] = last.shared_mb - first.shared_mb;
    result["descriptors_more"] = static_cast<long>(last.descriptors) - static_cast<long>(first.descriptors);
    result["threads_more"] = static_cast<long>(last.threads) - static_cast<long>(first.threads);
    bench::write_records(out, command, {{"isthmus", isthmus_version()}}, {result});
  }
};

}  // namespace

int main(int argc, char** argv) {
  setenv("ISTHMUS_CONFIG", "none", 1);
  setenv("ISTHMUS_PROFILE", "none", 1);
  const char* const minutes = topology::find_argument(argc, argv, "--minutes");
  const char* const ranks = topology::find_argument(argc, argv, "--ranks");
  const char* const out = topology::find_argument(argc, argv, "--out");
  try {
    return soak{minutes == nullptr ? 60 : std::atof(minutes), ranks == nullptr ? 64 : std::atoi(ranks),
                out == nullptr ? "" : out, bench::command_of(argc, argv)}
        .run();
  } catch (const std::exception& failure) {
    std::printf("soak: %s\n", failure.what());
    return 2;
  }
}
