// Allreduce by the peer-memory kernels of Isthmus against the default and the symmetric kernels of NCCL, in
// captured graphs on the same buffers. One host thread drives all devices. From 1 MiB on, the two forms of
// two_shot that tensor parallelism uses for long exact tensors are also measured, in place, as inference engines
// call them. Other libraries are plug-ins (--peer).
#include <isthmus/tensor_parallel.h>
#include <isthmus/tools.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "gpu_bench.hpp"
#include "harness/clock.hpp"
#include "harness/gpu/check.hpp"
#include "harness/gpu/peers.hpp"
#include "harness/gpu/timer.hpp"
#include "harness/rules_file.hpp"

namespace gpu_bench {
namespace {

using bench::median;

constexpr const char* bf16_rules =
    "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:two_shot_bf16\"\n"
    "[[rule]]\ncollective = \"allreduce\"\nranks = 2\nbytes = \"..2M\"\nuse = \"p2p:one_shot_bf16\"\n"
    "[[rule]]\ncollective = \"allreduce\"\nranks = \"3..\"\nbytes = \"..1M\"\nuse = \"p2p:one_shot_bf16\"\n";

struct p2p_settings : common_settings {
  std::vector<std::string> datatypes{"float32"};

  bool includes(std::uint64_t bytes, isthmus_datatype datatype) const {
    const bool all_sizes =
        std::find(datatypes.begin(), datatypes.end(), isthmus_datatype_name(datatype)) != datatypes.end();
    return all_sizes || bytes == (8 << 10) || bytes == (1 << 20) || bytes == (64 << 20);
  }
};

// Lifetime: ends with the comparison, which owns the streams.
using tensor_parallel_handle =
    std::unique_ptr<isthmus_tensor_parallel_impl, decltype(&isthmus_tensor_parallel_destroy)>;

class allreduce_comparison {
 public:
  allreduce_comparison(int ranks, const common_settings& settings)
      : m_thread(m_single_thread[0], 0, ranks),
        m_plain(nccl_communicators(m_nccl, ranks)),
        m_symmetric(nccl_communicators(m_nccl, ranks)),
        m_buffers(window_buffers(m_nccl, m_symmetric, settings.largest(), settings.largest())),
        m_exact(isthmus_communicators(0, ranks, "")),
        m_bf16(isthmus_communicators(0, ranks, bf16_rules)),
        m_staged(tensor_parallel("two_shot")),
        m_zero_copy(tensor_parallel("two_shot_zero_copy")),
        m_peers(load_peers(settings.peers, m_thread, m_buffers, settings.largest())) {}

  std::string nccl_version() const { return m_nccl.version(); }
  nlohmann::json versions() const { return versions_of(m_nccl, m_peers); }
  void fill(std::uint64_t bytes, isthmus_datatype datatype) const {
    m_thread.each([&](const device_lane& lane, std::size_t i) {
      fill_inputs(m_buffers[i].send, bytes, lane.rank, datatype);
    });
  }
  void run(const bench_case& test_case, int samples, nlohmann::json& records) const;
  nlohmann::json host_cost() const;

 private:
  std::vector<device_call> make_calls(const bench_case& test_case) const;
  device_call isthmus_call(const bench_case& test_case, const std::vector<isthmus_communicator>& communicators,
                           const char* mode) const;
  device_call in_place_call(bench_case test_case, const char* algorithm,
                            const tensor_parallel_handle& handle) const;
  tensor_parallel_handle tensor_parallel(const char* algorithm) const;
  void allreduce_in_place(const tensor_parallel_handle& handle, std::uint64_t count,
                          isthmus_datatype datatype) const;

  bench::thread_ranks m_single_thread{1};
  device_thread m_thread;
  bench::nccl_library m_nccl;
  std::vector<bench::nccl_comm> m_plain, m_symmetric;
  std::vector<rank_buffers> m_buffers;
  std::vector<isthmus_communicator> m_exact, m_bf16;
  tensor_parallel_handle m_staged, m_zero_copy;
  std::vector<peer_library> m_peers;
};

// A handle that uses one algorithm for every size, with an exact wire; without a name: with all defaults.
tensor_parallel_handle allreduce_comparison::tensor_parallel(const char* algorithm) const {
  const bench::rules_file file(algorithm == nullptr ? ""
                                                    : "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:" +
                                                          std::string(algorithm) + "\"\n");
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  for (const device_lane& lane : m_thread.lanes()) {
    devices.push_back({ISTHMUS_PLATFORM_CUDA, lane.rank});
    streams.push_back(lane.stream);
  }
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = file.path();
  options.timeout_s = 60;
  options.wire = ISTHMUS_WIRE_EXACT;
  isthmus_tensor_parallel handle = nullptr;
  check(isthmus_tensor_parallel_create(m_thread.size(), devices.data(), streams.data(),
                                       algorithm == nullptr ? nullptr : &options, &handle));
  return {handle, isthmus_tensor_parallel_destroy};
}

void allreduce_comparison::allreduce_in_place(const tensor_parallel_handle& handle, std::uint64_t count,
                                              isthmus_datatype datatype) const {
  std::vector<void*> pointers;
  for (const rank_buffers& each : m_buffers) pointers.push_back(each.recv);
  check(isthmus_tensor_parallel_allreduce(handle.get(), pointers.data(), count, datatype, ISTHMUS_ALL_ACTIVE));
}

device_call allreduce_comparison::isthmus_call(const bench_case& test_case,
                                               const std::vector<isthmus_communicator>& communicators,
                                               const char* mode) const {
  device_call call = make_isthmus_call(m_thread, test_case, m_buffers, communicators);
  const prepared_operation first_rank(test_case, 0, m_thread.size(), m_buffers.front(), m_thread.stream());
  char path[64] = "";
  check(isthmus_communicator_path(communicators.front(), &first_rank.get(), path, sizeof path));
  call.backend = path;
  call.mode = mode;
  return call;
}

device_call allreduce_comparison::in_place_call(bench_case test_case, const char* algorithm,
                                                const tensor_parallel_handle& handle) const {
  test_case.in_place = true;
  const std::uint64_t count = test_case.shape(m_thread.size()).count;
  return {
      {"isthmus", "tensor_parallel:" + std::string(algorithm), "in_place",
       [this, &handle, count, datatype = test_case.datatype] { allreduce_in_place(handle, count, datatype); }},
      test_case,
      m_buffers};
}

std::vector<device_call> allreduce_comparison::make_calls(const bench_case& test_case) const {
  std::vector<device_call> calls{make_nccl_call(m_thread, test_case, m_buffers, m_nccl, m_plain),
                                 make_nccl_call(m_thread, test_case, m_buffers, m_nccl, m_symmetric)};
  calls[1].provider = "nccl_symmetric";
  for (device_call& call : calls) call.backend = "nccl", call.mode = "graph";
  calls.push_back(isthmus_call(test_case, m_exact, "graph"));
  if (test_case.datatype == ISTHMUS_FLOAT32) {
    calls.push_back(isthmus_call(test_case, m_bf16, "bf16_wire"));
    calls.back().wire_error = std::ldexp(2.1, -8);
  }
  if (test_case.bytes >= 1 << 20) {
    calls.push_back(in_place_call(test_case, "two_shot", m_staged));
    calls.push_back(in_place_call(test_case, "two_shot_zero_copy", m_zero_copy));
  }
  for (const peer_library& peer : m_peers) {
    const auto arguments = allreduce_arguments(m_thread, test_case, m_buffers);
    for (device_call& call : peer.make_calls(m_thread, test_case, m_buffers, arguments))
      calls.push_back(std::move(call));
  }
  return calls;
}

void allreduce_comparison::run(const bench_case& test_case, int samples, nlohmann::json& records) const {
  const std::uint64_t bytes = test_case.bytes;
  std::vector<device_call> calls = make_calls(test_case);
  std::vector<std::uint64_t> wrong;
  std::vector<captured_graph> graphs;
  for (const device_call& call : calls) {
    wrong.push_back(count_wrong(m_thread, call, call.provider == "isthmus"));
    graphs.push_back(capture(m_thread, call, bytes <= (256 << 10) ? 64 : bytes <= (4 << 20) ? 24 : 6));
  }
  bench::interleave(calls.size(), 1, samples, [&](std::size_t i, int round) {
    const double us = graph_us(m_thread, calls[i], graphs[i]);
    if (round >= 0) calls[i].us.push_back(us);
  });
  std::printf("%9llu %-8s", static_cast<unsigned long long>(bytes), isthmus_datatype_name(test_case.datatype));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const device_call& call = calls[i];
    nlohmann::json line =
        bench::record_of(test_case.operation(m_thread.size()), call,
                         bench::bandwidth_of(ISTHMUS_ALLREDUCE, bytes, m_thread.size(), median(call.us)));
    line["op"] = "sum";
    line["wrong"] = wrong[i];
    records.push_back(std::move(line));
    const bool is_known = call.provider == "isthmus" || call.provider.starts_with("nccl");
    const std::string label = call.test_case.in_place ? call.backend
                              : is_known              ? call.provider
                                                      : call.provider + ":" + call.backend;
    std::printf(" %s%s %.2f%s", label.c_str(), call.mode == "bf16_wire" ? "/bf16" : "", median(call.us),
                wrong[i] != 0 ? " WRONG" : "");
    destroy(graphs[i]);
  }
  std::printf("\n");
}

// Host cost per device of one tensor-parallel call, and of launching an empty kernel.
nlohmann::json allreduce_comparison::host_cost() const {
  constexpr int calls = 50;  // in a row, for all devices
  const int size = m_thread.size();
  const tensor_parallel_handle handle = tensor_parallel(nullptr);
  std::vector<bench::method> methods{
      {"isthmus", "tensor_parallel", "stream", [&] { allreduce_in_place(handle, 1024, ISTHMUS_FLOAT32); }},
      {"cuda", "", "stream", [&] {
         m_thread.each([](const device_lane& lane, std::size_t) {
           check(cudaSetDevice(lane.rank));
           launch_empty_kernel(lane.stream);
         });
       }}};
  bench::interleave(methods.size(), 0, 21, [&](std::size_t i, int) {
    const std::uint64_t start = bench::steady_ns();
    for (int call = 0; call < calls; ++call) methods[i].run();
    methods[i].us.push_back(static_cast<double>(bench::steady_ns() - start) / 1e3 / calls / size);
    m_thread.wait();
  });
  const double call_us = median(methods[0].us), launch_us = median(methods[1].us);
  std::printf("host cost per device: tensor-parallel call %.2f us, empty kernel launch %.2f us\n", call_us,
              launch_us);
  // The record format requires a bandwidth; this one is based on host time.
  nlohmann::json result = bench::record_of({"allreduce", "float32", 4096, size}, methods[0],
                                           bench::bandwidth_of(ISTHMUS_ALLREDUCE, 4096, size, call_us));
  result["op"] = "sum";
  result["host_overhead_us"] = call_us;
  result["bare_launch_us"] = launch_us;
  result["wrong"] = 0;
  return result;
}

int run(const p2p_settings& settings) {
  constexpr int most_ranks = 16;  // of the peer-memory kernels
  const int ranks = std::min(settings.find_ranks(2), most_ranks);
  if (ranks == 0) return exit_skipped;
  const allreduce_comparison comparison(ranks, settings);
  std::printf("%d ranks, NCCL %s, median us over %d samples of the maximum over ranks\n", ranks,
              comparison.nccl_version().c_str(), settings.samples);
  nlohmann::json records = nlohmann::json::array();
  for (const isthmus_datatype datatype : {ISTHMUS_FLOAT32, ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16}) {
    comparison.fill(settings.largest(), datatype);
    for (const std::uint64_t bytes : settings.sizes) {
      if (!settings.includes(bytes, datatype)) continue;
      comparison.run({ISTHMUS_ALLREDUCE, bytes, datatype}, settings.samples, records);
      settings.write(records, comparison.versions());  // a later case may not complete
    }
  }
  records.push_back(comparison.host_cost());
  return settings.write(records, comparison.versions());
}

}  // namespace

void add_p2p(CLI::App& app, program& result) {
  const auto settings = std::make_shared<p2p_settings>();
  settings->samples = 25;
  settings->sizes = {128,       1 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10,
                     512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20};
  CLI::App* const subcommand =
      result.add(app, "p2p", "the peer-memory allreduce of Isthmus against NCCL and plug-ins", settings,
                 "--samples", "--sizes", [settings] { return run(*settings); });
  subcommand->add_option("--ranks", settings->ranks, "ranks, one per device (0: all devices)");
  subcommand
      ->add_option("--datatypes", settings->datatypes, "measured with every size; the others with three sizes")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str();
  settings->add_peers(*subcommand);
}

}  // namespace gpu_bench
