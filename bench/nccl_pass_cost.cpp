// Cost of NCCL calls that libisthmus_nccl_preload.so passes through: in one process the same calls alternate
// between the library and NCCL itself; the difference is the cost of the library. It runs on a communicator of
// one rank, which is never attached, or of several processes, where the library orders NCCL calls with its own;
// in that case some calls also have work for the device. The program links with neither library:
//   nccl_pass_cost LIBRARY NCCL [FILE [--rank R --size N --id FILE --device D]]
// scripts/each_rank starts it for several ranks. NCCL may be the stand-in of tests/standins.
//
// Calls between exported functions of NCCL reach the library only if it is preloaded. To measure them, compare
// the same row of two runs: one under LD_PRELOAD, and one whose LIBRARY is NCCL itself.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "harness/clock.hpp"
#include "harness/command.hpp"
#include "harness/cuda_driver.hpp"
#include "harness/methods.hpp"
#include "harness/nccl.hpp"

namespace {

using bench::check_nccl;

constexpr int batches = 400, calls = 500;
constexpr int device_batches = 60, device_calls_per_batch = 200;
constexpr std::size_t device_call_bytes = 1024;
constexpr int int32 = bench::nccl::native_int32, sum = bench::nccl::native_sum;

// A stream and some memory of a device.
class device_work {
 public:
  explicit device_work(int ordinal) : m_driver(ordinal) {
    m_driver.call<int(void**, unsigned, int)>("cuStreamCreateWithPriority", &m_stream, 1U, 0);
    m_driver.call<int(void**, std::size_t)>("cuMemAlloc_v2", &m_memory, std::size_t{1} << 20);
  }
  void* stream() const { return m_stream; }
  char* memory() const { return static_cast<char*>(m_memory); }
  void synchronize() const {
    if (m_synchronize(m_stream) != 0) throw std::runtime_error("cuStreamSynchronize failed");
  }

 private:
  bench::cuda_driver m_driver;
  void *m_stream = nullptr, *m_memory = nullptr;
  int (*m_synchronize)(void*) = m_driver.find<int(void*)>("cuStreamSynchronize");
};

using named_calls = std::vector<std::pair<std::string, std::function<void()>>>;

// Calls without work for a device: a query, a collective without elements, an empty group.
named_calls host_calls(const bench::nccl_functions& nccl, bench::nccl_comm comm, int* answer) {
  return {{"ncclCommCount", [&nccl, comm, answer] { nccl.comm_count(comm, answer); }},
          {"ncclAllReduce of nothing",
           [&nccl, comm, answer] {
             nccl.all_reduce(answer, answer, 0, bench::nccl::native_float32, sum, comm, nullptr);
           }},
          {"an empty group", [&nccl] {
             nccl.group_start();
             nccl.group_end();
           }}};
}

// Calls with work for the device: one that no backend of Isthmus supports, messages in a group, and a
// collective that NCCL has a function for since 2.28.
named_calls device_calls(const bench::nccl_functions& nccl, bench::nccl_comm comm, const device_work& device,
                         int ranks) {
  constexpr std::size_t count = device_call_bytes / 4;
  char *const from = device.memory(), *const to = from + (1 << 19);
  void* const stream = device.stream();
  named_calls rows = {
      {"ncclAllReduce of int32", [=, &nccl] { nccl.all_reduce(from, to, count, int32, sum, comm, stream); }},
      {"messages in a group", [=, &nccl] {
         nccl.group_start();
         for (int peer = 0; peer < ranks; ++peer) {
           const std::size_t offset = static_cast<std::size_t>(peer) * device_call_bytes;
           nccl.send(from + offset, count, int32, peer, comm, stream);
           nccl.recv(to + offset, count, int32, peer, comm, stream);
         }
         nccl.group_end();
       }}};
  if (nccl.all_to_all != nullptr)
    rows.emplace_back("ncclAlltoAll", [=, &nccl] { nccl.all_to_all(from, to, count, int32, comm, stream); });
  return rows;
}

struct process_arguments {
  int rank = 0, ranks = 1, device = 0;
  std::string id_file;
};

bench::nccl_unique_id shared_id(const bench::nccl_library& shim, const process_arguments& arguments) {
  bench::nccl_unique_id id{};
  if (arguments.rank == 0) id = shim.unique_id();
  if (arguments.ranks == 1) return id;
  if (arguments.rank == 0) {
    std::ofstream(arguments.id_file + ".new", std::ios::binary).write(id.internal, sizeof id.internal);
    std::rename((arguments.id_file + ".new").c_str(), arguments.id_file.c_str());
  }
  while (!std::ifstream(arguments.id_file, std::ios::binary).read(id.internal, sizeof id.internal))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return id;
}

// Alternates batches of the same calls between the library and NCCL.
void compare(const named_calls& isthmus_calls, const named_calls& nccl_calls, int batches, int n,
             const bench::measured_operation& base, const process_arguments& arguments,
             const device_work* device, nlohmann::json& records) {
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
    bench::measured_operation operation = base;
    operation.collective = name;
    records.push_back(bench::record_of(operation, {"nccl", "", "host", {}, nccl_us}, {}));
    records.push_back(bench::record_of(operation, {"nccl+shim", "", "host", {}, library_us}, {}));
    if (arguments.rank == 0)
      std::printf("%-26s medians: %8.4f us, through the library %8.4f\n", name.c_str(), bench::median(nccl_us),
                  bench::median(library_us));
  }
}

void measure(const char* shim_path, const char* nccl_path, const std::string& json,
             const process_arguments& arguments) {
  setenv("ISTHMUS_NCCL_LIBRARY", nccl_path, 1);
  const bench::nccl_library shim(shim_path), nccl(nccl_path);
  std::unique_ptr<device_work> device;
  if (arguments.ranks > 1) device = std::make_unique<device_work>(arguments.device);
  const bench::nccl_comm comm = shim.join(shared_id(shim, arguments), arguments.rank, arguments.ranks);
  int answer = 0;
  nlohmann::json records = nlohmann::json::array();
  compare(host_calls(shim.functions(), comm, &answer), host_calls(nccl.functions(), comm, &answer), batches,
          calls, {"", "float32", 0, arguments.ranks}, arguments, nullptr, records);
  if (device)
    compare(device_calls(shim.functions(), comm, *device, arguments.ranks),
            device_calls(nccl.functions(), comm, *device, arguments.ranks), device_batches,
            device_calls_per_batch, {"", "int32", device_call_bytes, arguments.ranks}, arguments, device.get(),
            records);
  check_nccl(shim->comm_destroy(comm));
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
  for (std::string* const path : {&library, &nccl})  // Isthmus loads no library through a relative path
    if (path->find('/') != std::string::npos) *path = std::filesystem::absolute(*path).string();
  measure(library.c_str(), nccl.c_str(), json, arguments);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "nccl_pass_cost: %s\n", failure.what());
  return 1;
}
