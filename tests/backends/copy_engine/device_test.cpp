// Tests the backend through the C API on the devices of a driver: the GPUs of a machine, or the stand-in.
//
//   copy_engine_device_test [--platform cuda|hip] [--world threads|processes] [--ranks N] [--calls N]
//                           [--without-compiler]
//
// Cases: random calls of all supported collectives with all buffer placements, checked byte by byte against the
// oracle; subcommunicators; skewed back-to-back calls; all kinds of streams; captured graphs if the driver
// supports them; missing ranks. Exit code 77: fewer than two devices.
#include <dlfcn.h>
#include <isthmus/memory.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "device_ranks.hpp"
#include "oracle/inputs.hpp"

namespace copy_engine_test {
namespace {

using conformance::test_case;
using steady_clock = std::chrono::steady_clock;

constexpr isthmus_collective collectives[] = {ISTHMUS_ALLGATHER,     ISTHMUS_ALLGATHERV, ISTHMUS_ALLTOALL,
                                              ISTHMUS_BROADCAST,     ISTHMUS_GATHER,     ISTHMUS_SCATTER,
                                              ISTHMUS_REDUCE_SCATTER};

struct options {
  std::string platform = "cuda", rank_mode = "threads";
  int ranks = 0;
  int calls = 120;
  bool without_compiler = false;
};

// Returns whether a rule with this algorithm must accept reductions.
bool can_reduce(const std::string& use) { return use != "copy_engine:push"; }

test_case draw_case(std::uint64_t seed, int ranks) {
  const auto draw = [&](std::uint64_t salt, std::uint64_t bound) { return oracle::mix(seed, salt) % bound; };
  constexpr std::uint64_t counts[] = {0, 1, 3, 17, 255, 1001, 4099, 32771, 50001};
  test_case test;
  test.collective = collectives[draw(1, std::size(collectives))];
  test.datatype = static_cast<isthmus_datatype>(draw(2, ISTHMUS_DATATYPE_COUNT));
  test.op = static_cast<isthmus_reduction_op>(draw(8, ISTHMUS_REDUCTION_OP_COUNT));
  test.special = draw(9, 4) == 0;
  test.count = counts[draw(3, std::size(counts))];
  test.root = static_cast<int>(draw(4, static_cast<std::uint64_t>(ranks)));
  test.in_place = draw(5, 2) == 0 && conformance::can_be_in_place(test.collective);
  test.heap = draw(6, 2) == 0;
  test.seed = oracle::mix(seed, 7) >> 1;
  return test;
}

int report(const char* case_name, int rank, const test_case& test, const std::string& error) {
  std::printf("FAIL %s, rank %d: %s | %s\n", case_name, rank, error.c_str(),
              conformance::to_string(test).c_str());
  return 1;
}

// A failed call aborts the communicator, so the first problem ends the series.
int run_series(member& self, const char* case_name, int calls, std::uint64_t seed) {
  for (int i = 0; i < calls; ++i) {
    const test_case test = draw_case(oracle::mix(seed, static_cast<std::uint64_t>(i)), self.size());
    if (const auto error = self.run_case(test)) return report(case_name, self.rank(), test, *error);
  }
  return 0;
}

// The requested algorithm must be selected, and unsupported calls must be refused with the right reason.
int check_choice(member& self, const options& requested, const std::string& expected) {
  int failures = 0;
  for (const isthmus_collective collective : {ISTHMUS_ALLGATHER, ISTHMUS_REDUCE_SCATTER}) {
    test_case test;
    test.collective = collective;
    test.count = 100;
    const device_call call(test, self.rank(), self.size(), self.device().mirror(), self.device().plain());
    const std::string selected = self.selected_path(call.operation);
    const bool reduces = collective == ISTHMUS_REDUCE_SCATTER;
    const bool is_right =
        !reduces || (can_reduce(expected) && !requested.without_compiler)
            ? selected == expected
            : selected.find(can_reduce(expected) ? "library could be loaded" : "use copy_engine:staged") !=
                  std::string::npos;
    if (!is_right)
      failures += report("choice", self.rank(), test, "uses " + selected + " instead of " + expected);
  }
  return failures;
}

// ---- cases --------------------------------------------------------------------------------------------

int random_calls(member& self, int calls) { return run_series(self, "random calls", calls, 1000); }

// No rank continues while a subcommunicator is being destroyed: the last rank of a process frees the memory of
// all ranks. If that waits for the devices (hipFree), it must not wait for a stream that waits for this rank.
int subcommunicators(member& self, rendezvous& all) {
  int failures = 0;
  for (const bool is_by_parity : {true, false}) {
    isthmus_communicator handle = nullptr;
    // First split the ranks by parity, then use all ranks in reverse order.
    if (isthmus_communicator_split(self.handle(), is_by_parity ? self.rank() % 2 : 0, -self.rank(), &handle) !=
        ISTHMUS_SUCCESS)
      return report("split", self.rank(), {}, last_error());
    {
      member sub(self.device(), handle);
      failures += run_series(sub, "part", 30, 2000 + (is_by_parity ? self.rank() % 2 : 7));
      all.wait();
    }
    all.wait();
  }
  return failures;
}

// Many calls without checks in between, from skewed ranks.
int skewed(member& self) {
  constexpr int calls = 40;
  rank_device& device = self.device();
  std::vector<std::unique_ptr<device_call>> all;
  std::size_t offset = 0;
  for (int i = 0; i < calls; ++i) {
    test_case test = draw_case(oracle::mix(3000, static_cast<std::uint64_t>(i)), self.size());
    test.count = std::min<std::uint64_t>(test.count, 1001);
    const auto make_call = [&] {
      return std::make_unique<device_call>(test, self.rank(), self.size(), device.mirror().subspan(offset),
                                           (test.heap ? self.heap() : device.plain()) + offset);
    };
    auto call = make_call();
    if (!self.selected_path(call->operation).starts_with("copy_engine")) {  // unsupported by this algorithm
      test.collective = ISTHMUS_ALLTOALL;
      call = make_call();
    }
    device.upload(call->on_device, call->mirror);
    offset += (call->mirror.size() + 255) / 256 * 256;
    all.push_back(std::move(call));
  }
  for (int i = 0; i < calls; ++i) {
    const std::uint64_t delay =
        oracle::mix(4000 + static_cast<std::uint64_t>(self.rank()), static_cast<std::uint64_t>(i));
    if (delay % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delay % 3000));
    all[static_cast<std::size_t>(i)]->operation.stream = device.stream();
    if (isthmus_enqueue(self.handle(), &all[static_cast<std::size_t>(i)]->operation) != ISTHMUS_SUCCESS)
      return report("skewed calls", self.rank(), {}, last_error());
  }
  for (const auto& call : all) device.download(call->mirror, call->on_device);
  device.synchronize();
  for (const auto& call : all)
    if (const auto error = call->buffers.find_error(true, true, false))
      return report("skewed calls", self.rank(), {}, *error);
  return 0;
}

int streams(member& self) {
  rank_device& device = self.device();
  int failures = 0;
  const isthmus::native_stream second_stream =
      device.driver().create_stream(device.device(), isthmus::stream_priority::high);
  for (const isthmus::native_stream stream :
       {isthmus::native_stream(nullptr), second_stream, device.own_stream()}) {
    device.use_stream(stream);
    failures += run_series(self, stream == nullptr ? "the NULL stream" : "another stream", 15, 5000);
  }
  device.synchronize();
  device.driver().destroy_stream(device.device(), second_stream);
  return failures;
}

// CUDA's graph functions, if a real driver is loaded.
struct graph_functions {
  int (*begin)(void* stream, int mode) = nullptr;
  int (*end)(void* stream, void** graph) = nullptr;
  int (*instantiate)(void** executable, void* graph, unsigned long long flags) = nullptr;
  int (*launch)(void* executable, void* stream) = nullptr;

  bool load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return false;
    begin = reinterpret_cast<decltype(begin)>(dlsym(library, "cuStreamBeginCapture_v2"));
    end = reinterpret_cast<decltype(end)>(dlsym(library, "cuStreamEndCapture"));
    instantiate = reinterpret_cast<decltype(instantiate)>(dlsym(library, "cuGraphInstantiateWithFlags"));
    launch = reinterpret_cast<decltype(launch)>(dlsym(library, "cuGraphLaunch"));
    return begin != nullptr && end != nullptr && instantiate != nullptr && launch != nullptr;
  }
};

// The reductions were not called before, so their kernels are compiled while the stream is captured.
constexpr test_case captured_calls[] = {
    {ISTHMUS_ALLTOALL, ISTHMUS_UINT8, ISTHMUS_SUM, 200003, 0, false, true, false, 4},
    {ISTHMUS_ALLTOALL, ISTHMUS_UINT8, ISTHMUS_SUM, 200003, 0, false, false, false, 4},
    {ISTHMUS_REDUCE_SCATTER, ISTHMUS_FLOAT32, ISTHMUS_SUM, 200003, 0, false, false, false, 4},
    {ISTHMUS_REDUCE_SCATTER, ISTHMUS_BFLOAT16, ISTHMUS_AVG, 50000, 0, true, true, false, 8}};

// Every graph launch uses new data, interleaved with calls that are not captured.
int graphs(member& self) {
  graph_functions cuda;
  if (!cuda.load()) {
    if (self.rank() == 0) std::puts("graphs: not supported by this driver");
    return 0;
  }
  rank_device& device = self.device();
  for (const test_case& test : captured_calls) {
    std::byte* buffer = test.heap ? self.heap() : device.plain();
    device_call captured(test, self.rank(), self.size(), device.mirror(), buffer);
    captured.operation.stream = device.stream();
    if (!self.selected_path(captured.operation).starts_with("copy_engine"))
      continue;  // unsupported by this algorithm
    void *graph = nullptr, *executable = nullptr;
    constexpr int thread_local_mode = 1;
    const auto on_device = [&](auto&& call) {  // these functions use the thread's current device
      int code = -1;
      device.driver().run_on_device(device.device(), [&] { code = call(); });
      return code;
    };
    if (const int code = on_device([&] { return cuda.begin(device.stream(), thread_local_mode); }); code != 0)
      return report("capture", self.rank(), test, "begin: " + std::to_string(code));
    const isthmus_status status = isthmus_enqueue(self.handle(), &captured.operation);
    const int end_status = on_device([&] { return cuda.end(device.stream(), &graph); });
    if (end_status != 0 || status != ISTHMUS_SUCCESS)
      return report("capture", self.rank(), test, "end: " + std::to_string(end_status) + ", " + last_error());
    if (const int code = on_device([&] { return cuda.instantiate(&executable, graph, 0); }); code != 0)
      return report("capture", self.rank(), test, "instantiate: " + std::to_string(code));
    for (int i = 0; i < 9; ++i) {
      if (i % 3 == 2) {
        if (run_series(self, "among graphs", 2, 6000 + static_cast<std::uint64_t>(i)) != 0) return 1;
        continue;
      }
      device_call replayed(test, self.rank(), self.size(), device.mirror(), buffer);
      device.upload(buffer, replayed.mirror);
      if (const int code = on_device([&] { return cuda.launch(executable, device.stream()); }); code != 0)
        return report("replay", self.rank(), test, "launch: " + std::to_string(code));
      device.download(replayed.mirror, buffer);
      device.synchronize();
      if (const auto error = replayed.buffers.find_error(true, true, false))
        return report("replay", self.rank(), test, *error);
    }
  }
  return 0;
}

// Only rank 0 makes the call: it must fail after the timeout, report it, and release the stream.
int missing_rank(rank_device& device, rendezvous& all, int rank, int size) {
  int failures = 0;
  for (const char* use : {"copy_engine:zero_copy", "copy_engine:staged"}) {
    member self(device, all.new_unique_id(rank), rank, size, use, 2);
    self.heap();
    if (rank == 0) {
      test_case test;
      test.collective = ISTHMUS_ALLGATHER;
      test.count = 5000;
      test.heap = true;
      device_call call(test, rank, size, device.mirror(), self.heap());
      call.operation.stream = device.stream();
      const auto begin = steady_clock::now();
      if (isthmus_enqueue(self.handle(), &call.operation) != ISTHMUS_SUCCESS)
        failures += report("missing rank", rank, test, last_error());
      device.synchronize();
      const double seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
      if (seconds < 1.5 || seconds > 20)
        failures += report("missing rank", rank, test, "released after " + std::to_string(seconds) + " s");
      if (isthmus_communicator_async_error(self.handle()) != ISTHMUS_ERROR_TIMEOUT)
        failures += report("missing rank", rank, test, "no timeout: " + last_error());
    }
    all.wait();
  }
  return failures;
}

int run_all_cases(const options& requested, rank_device& device, rendezvous& all, int rank, int size) {
  int failures = 0;
  for (const char* use : {"copy_engine", "copy_engine:push", "copy_engine:staged"}) {
    member self(device, all.new_unique_id(rank), rank, size, use, 60);
    failures += check_choice(self, requested, use);
    // Graphs first, so that their kernels are not compiled yet.
    if (failures == 0) failures += graphs(self);
    if (failures == 0) failures += random_calls(self, requested.calls);
    if (failures == 0) failures += subcommunicators(self, all);
    if (failures == 0) failures += skewed(self);
    if (failures == 0) failures += streams(self);
    device.synchronize();
    all.wait();
  }
  return failures + missing_rank(device, all, rank, size);
}

}  // namespace
}  // namespace copy_engine_test

int main(int argc, char** argv) {
  using namespace copy_engine_test;
  CLI::App app{"Copy-engine collectives on the devices of this machine"};
  options requested;
  app.add_option("--platform", requested.platform, "device driver")->check(CLI::IsMember({"cuda", "hip"}));
  app.add_option("--world", requested.rank_mode, "run ranks as threads or processes")
      ->check(CLI::IsMember({"threads", "processes"}));
  app.add_option("--ranks", requested.ranks, "number of ranks; default: number of devices, at most 4");
  app.add_option("--calls", requested.calls, "random calls per algorithm");
  app.add_flag("--without-compiler", requested.without_compiler,
               "expect reductions to be refused for lack of a compiler");
  CLI11_PARSE(app, argc, argv);
  const isthmus_platform platform = requested.platform == "hip" ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA;
  const int devices = count_devices(platform);
  const int size = requested.ranks > 0 ? requested.ranks : std::min(devices, 4);
  if (size < 2 || devices < (requested.rank_mode == "processes" ? 1 : size)) {  // processes may share a device
    std::puts("SKIPPED: copy engines need two devices");
    return 77;
  }
  const auto begin = steady_clock::now();
  const int failures = run(platform, requested.rank_mode == "processes", size,
                           [&](rank_device& device, rendezvous& all, int rank, int ranks) {
                             return run_all_cases(requested, device, all, rank, ranks);
                           });
  std::printf("copy_engine on %d %s devices, ranks in %s: %d failed, %.1f s\n", size,
              requested.platform.c_str(), requested.rank_mode.c_str(), failures,
              std::chrono::duration<double>(steady_clock::now() - begin).count());
  return failures == 0 ? 0 : 1;
}
