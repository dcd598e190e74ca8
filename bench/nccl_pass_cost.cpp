// Cost of NCCL calls that libisthmus_nccl_preload.so passes through: in one process the same calls alternate
// between the library and NCCL itself; the difference is the cost of the library. It runs on a communicator of
// one rank, which is never attached, or of several processes, where the library orders NCCL calls with its own;
// in that case some calls also have work for the device. The program links with neither library:
//   nccl_pass_cost LIBRARY NCCL [FILE [--rank R --size N --id FILE --device D]]
// scripts/each_rank starts it for several ranks. NCCL may be the stand-in of tests/standins.
//
// Calls between exported functions of NCCL reach the library only if it is preloaded. To measure them, compare
// the same row of two runs: one under LD_PRELOAD, and one whose LIBRARY is NCCL itself.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "device/gpu/functions.hpp"
#include "harness/clock.hpp"
#include "harness/document.hpp"

namespace {

constexpr int batches = 400, calls = 500;
constexpr int device_batches = 60, device_calls_per_batch = 200;
constexpr std::size_t device_call_bytes = 1024;
constexpr int int32 = 2;  // ncclInt32

template <typename Function>
Function function_of(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("no function ") + name + " in the library");
  return reinterpret_cast<Function>(symbol);
}

void* open(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

void check(int code, const char* function) {
  if (code != 0) throw std::runtime_error(std::string(function) + " failed");
}

// A device through the CUDA driver: its context, current in this thread, a stream and some memory.
class cuda_device {
 public:
  explicit cuda_device(int ordinal) {
    const char* const replacement =
        std::getenv(isthmus::gpu::library_search(isthmus::gpu::vendor_library::cuda_driver).variable);
    m_driver = open(replacement != nullptr ? replacement : isthmus::gpu::cuda_driver_name);
    void* context = nullptr;
    check(function_of<int (*)(unsigned)>(m_driver, "cuInit")(0), "cuInit");
    check(function_of<int (*)(void**, int)>(m_driver, "cuDevicePrimaryCtxRetain")(&context, ordinal),
          "cuDevicePrimaryCtxRetain");
    check(function_of<int (*)(void*)>(m_driver, "cuCtxPushCurrent_v2")(context), "cuCtxPushCurrent_v2");
    check(function_of<int (*)(void**, unsigned, int)>(m_driver, "cuStreamCreateWithPriority")(&m_stream, 1, 0),
          "cuStreamCreateWithPriority");
    check(function_of<int (*)(void**, std::size_t)>(m_driver, "cuMemAlloc_v2")(&m_memory, 1 << 20),
          "cuMemAlloc_v2");
    m_synchronize = function_of<int (*)(void*)>(m_driver, "cuStreamSynchronize");
  }
  void* stream() const { return m_stream; }
  char* memory() const { return static_cast<char*>(m_memory); }
  void synchronize() const { check(m_synchronize(m_stream), "cuStreamSynchronize"); }

 private:
  void *m_driver = nullptr, *m_stream = nullptr, *m_memory = nullptr;
  int (*m_synchronize)(void*) = nullptr;
};

using sum_function = int (*)(const void*, void*, std::size_t, int, int, void*, void*);
using group_function = int (*)();
using named_calls = std::vector<std::pair<std::string, std::function<void()>>>;

// Calls without work for a device: a query, a collective without elements, an empty group.
named_calls host_calls(void* library, void* comm, int* answer) {
  using count_function = int (*)(void*, int*);
  const auto count = function_of<count_function>(library, "ncclCommCount");
  const auto sum = function_of<sum_function>(library, "ncclAllReduce");
  const auto start = function_of<group_function>(library, "ncclGroupStart");
  const auto end = function_of<group_function>(library, "ncclGroupEnd");
  return {{"ncclCommCount", [=] { count(comm, answer); }},
          {"ncclAllReduce of nothing", [=] { sum(answer, answer, 0, 7, 0, comm, nullptr); }},
          {"an empty group", [=] {
             start();
             end();
           }}};
}

// Calls with work for the device: one that no backend of Isthmus supports, messages in a group, and a
// collective that NCCL has a function for since 2.28.
named_calls device_calls(void* library, void* comm, const cuda_device& device, int ranks) {
  using move_function = int (*)(const void*, void*, std::size_t, int, void*, void*);
  using send_function = int (*)(const void*, std::size_t, int, int, void*, void*);
  using receive_function = int (*)(void*, std::size_t, int, int, void*, void*);
  const auto sum = function_of<sum_function>(library, "ncclAllReduce");
  const auto send = function_of<send_function>(library, "ncclSend");
  const auto receive = function_of<receive_function>(library, "ncclRecv");
  const auto start = function_of<group_function>(library, "ncclGroupStart");
  const auto end = function_of<group_function>(library, "ncclGroupEnd");
  char *const from = device.memory(), *const to = from + (1 << 19);
  void* const stream = device.stream();
  named_calls rows = {
      {"ncclAllReduce of int32", [=] { sum(from, to, device_call_bytes / 4, int32, 0, comm, stream); }},
      {"messages in a group", [=] {
         start();
         for (int peer = 0; peer < ranks; ++peer) {
           const std::size_t offset = static_cast<std::size_t>(peer) * device_call_bytes;
           send(from + offset, device_call_bytes / 4, int32, peer, comm, stream);
           receive(to + offset, device_call_bytes / 4, int32, peer, comm, stream);
         }
         end();
       }}};
  if (void* const symbol = dlsym(library, "ncclAlltoAll"))
    rows.emplace_back("ncclAlltoAll", [=] {
      reinterpret_cast<move_function>(symbol)(from, to, device_call_bytes / 4, int32, comm, stream);
    });
  return rows;
}

struct nccl_id {
  char internal[128];
};

struct process_arguments {
  int rank = 0, ranks = 1, device = 0;
  std::string id_file;
};

nccl_id shared_id(void* shim, const process_arguments& arguments) {
  nccl_id id{};
  if (arguments.rank == 0) {
    check(function_of<int (*)(nccl_id*)>(shim, "ncclGetUniqueId")(&id), "ncclGetUniqueId");
    std::ofstream(arguments.id_file + ".new", std::ios::binary).write(id.internal, sizeof id.internal);
    std::rename((arguments.id_file + ".new").c_str(), arguments.id_file.c_str());
  }
  while (!std::ifstream(arguments.id_file, std::ios::binary).read(id.internal, sizeof id.internal))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return id;
}

void* make_communicator(void* shim, const process_arguments& arguments) {
  void* comm = nullptr;
  if (arguments.ranks == 1)
    check(function_of<int (*)(void**, int, const int*)>(shim, "ncclCommInitAll")(&comm, 1, nullptr),
          "ncclCommInitAll");
  else
    check(function_of<int (*)(void**, int, nccl_id, int)>(shim, "ncclCommInitRank")(
              &comm, arguments.ranks, shared_id(shim, arguments), arguments.rank),
          "ncclCommInitRank");
  return comm;
}

// Alternates batches of the same calls between the library and NCCL.
void compare(const named_calls& isthmus_calls, const named_calls& nccl_calls, int batches, int n,
             const bench::record_point& base, const process_arguments& arguments, const cuda_device* device,
             nlohmann::json& records) {
  const auto time_us = [&](const std::function<void()>& call) {
    const std::uint64_t start = bench::ticks();
    for (int i = 0; i < n; ++i) call();
    if (device != nullptr) device->synchronize();
    return static_cast<double>(bench::ticks() - start) * bench::ns_per_tick() / 1e3 / n;
  };
  for (std::size_t i = 0; i < isthmus_calls.size(); ++i) {
    std::vector<double> library_us, nccl_us;
    time_us(isthmus_calls[i].second);
    for (int each = 0; each < batches; ++each) {
      library_us.push_back(time_us(isthmus_calls[i].second));
      nccl_us.push_back(time_us(nccl_calls[i].second));
    }
    const std::string& name = isthmus_calls[i].first;
    bench::record_point point = base;
    point.collective = name;
    records.push_back(bench::record_of(point, nccl_us, {}));
    point.provider = "nccl+shim";
    records.push_back(bench::record_of(point, library_us, {}));
    if (arguments.rank == 0)
      std::printf("%-26s medians: %8.4f us, through the library %8.4f\n", name.c_str(), bench::median(nccl_us),
                  bench::median(library_us));
  }
}

void measure(const char* shim_path, const char* nccl_path, const std::string& json,
             const process_arguments& arguments) {
  setenv("ISTHMUS_NCCL_LIBRARY", nccl_path, 1);
  void *const shim = open(shim_path), *const nccl = open(nccl_path);
  std::unique_ptr<cuda_device> device;
  if (arguments.ranks > 1) device = std::make_unique<cuda_device>(arguments.device);
  void* const comm = make_communicator(shim, arguments);
  int answer = 0;
  nlohmann::json records = nlohmann::json::array();
  compare(host_calls(shim, comm, &answer), host_calls(nccl, comm, &answer), batches, calls,
          {"", "float32", 0, arguments.ranks, "nccl", "", "host"}, arguments, nullptr, records);
  if (device)
    compare(device_calls(shim, comm, *device, arguments.ranks),
            device_calls(nccl, comm, *device, arguments.ranks), device_batches, device_calls_per_batch,
            {"", "int32", device_call_bytes, arguments.ranks, "nccl", "", "host"}, arguments, device.get(),
            records);
  check(function_of<int (*)(void*)>(shim, "ncclCommDestroy")(comm), "ncclCommDestroy");
  if (arguments.rank != 0) return;
  const std::string file(nccl_path);
  bench::write_records(json, "nccl_pass_cost", {{"nccl", file.substr(file.rfind('/') + 1)}},
                       std::move(records));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Measures the cost of NCCL calls that the preloaded library passes through");
  std::string library, nccl, json;
  process_arguments arguments;
  app.add_option("library", library, "libisthmus_nccl_preload.so")->required();
  app.add_option("nccl", nccl, "NCCL library, or its stand-in")->required();
  app.add_option("json", json, "write the records to this file");
  app.add_option("--rank", arguments.rank, "rank of this process");
  app.add_option("--size", arguments.ranks, "number of processes");
  app.add_option("--id", arguments.id_file, "file for exchanging the unique id");
  CLI::Option* const device =
      app.add_option("--device", arguments.device, "device ordinal (default: the rank)");
  CLI11_PARSE(app, argc, argv);
  if (device->count() == 0) arguments.device = arguments.rank;
  measure(library.c_str(), nccl.c_str(), json, arguments);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "nccl_pass_cost: %s\n", failure.what());
  return 1;
}
