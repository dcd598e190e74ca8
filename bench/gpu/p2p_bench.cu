// Allreduce through Isthmus' peer-memory kernels against NCCL's default and its symmetric kernels: captured
// graphs on the same buffers, providers in turn, one run. One host thread drives all devices. A sample is
// the maximum over ranks of (stop - start) / calls, both recorded inside the graph behind two calls that
// align the ranks; a figure is the median over samples. From 1 MiB on, the two forms of two shots that tensor
// parallelism has for long exact tensors are measured beside them, in place as engines call them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <isthmus/tensor_parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl_library.hpp"
#include "oracle/inputs.hpp"
#include "oracle/number.hpp"
#include "statistics.hpp"

namespace {

using gpu_bench::check;

struct nccl_functions : gpu_bench::nccl_library {
  decltype(&ncclCommInitAll) init_all = symbol<decltype(&ncclCommInitAll)>("ncclCommInitAll");
  decltype(&ncclAllReduce) all_reduce = symbol<decltype(&ncclAllReduce)>("ncclAllReduce");
  decltype(&ncclGroupStart) group_start = symbol<decltype(&ncclGroupStart)>("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = symbol<decltype(&ncclGroupEnd)>("ncclGroupEnd");
  decltype(&ncclMemAlloc) mem_alloc = symbol<decltype(&ncclMemAlloc)>("ncclMemAlloc");
  decltype(&ncclGetVersion) get_version = symbol<decltype(&ncclGetVersion)>("ncclGetVersion");
  decltype(&ncclCommWindowRegister) window_register =
      symbol<decltype(&ncclCommWindowRegister)>("ncclCommWindowRegister");
};

struct rank_state {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  void *send = nullptr, *recv = nullptr;  // ncclMemAlloc, registered as windows of `symmetric` only
  ncclComm_t plain = nullptr, symmetric = nullptr;
};

struct type_row {
  isthmus_datatype type;
  ncclDataType_t nccl;
  const char* name;
  std::size_t bytes;
};
constexpr type_row types[] = {{ISTHMUS_FLOAT32, ncclFloat32, "float32", 4},
                              {ISTHMUS_FLOAT16, ncclFloat16, "float16", 2},
                              {ISTHMUS_BFLOAT16, ncclBfloat16, "bfloat16", 2}};

struct provider {
  std::string name, backend, mode;
  std::function<void(std::uint64_t count, const type_row&)> call;  // all ranks
  bool float32_only = false;
  std::uint64_t from_bytes = 0;
  bool in_place() const { return mode == "in_place"; }
};

// Releases with the bench; the streams belong to it.
using trio = std::unique_ptr<isthmus_tensor_parallel_impl, decltype(&isthmus_tensor_parallel_free)>;

class bench {
 public:
  bench(int ranks, std::uint64_t largest);
  std::vector<provider> providers();
  nlohmann::json run(std::uint64_t bytes, const type_row& type, int samples);
  nlohmann::json host_cost();
  std::string nccl_version() {
    int version = 0;
    check(m_nccl.get_version(&version));
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

 private:
  int size() const { return static_cast<int>(m_ranks.size()); }
  std::vector<isthmus_communicator> communicators(const char* rules);
  trio tensor_parallel(const char* algorithm);
  void sum_in_place(const trio& handle, std::uint64_t count, const type_row& type);
  void prepare(const provider& which, std::uint64_t bytes);
  std::uint64_t count_wrong(const provider& which, std::uint64_t count, const type_row& type);
  std::vector<cudaGraphExec_t> capture(const provider& which, std::uint64_t count, const type_row& type,
                                       int calls);
  double sample(const provider& which, std::uint64_t bytes, const std::vector<cudaGraphExec_t>& graphs,
                int calls);
  void nccl(bool symmetric, std::uint64_t count, const type_row& type);
  void isthmus(const std::vector<isthmus_communicator>& group, std::uint64_t count, const type_row& type);
  std::string backend_of(isthmus_communicator communicator, std::uint64_t count, const type_row& type);

  std::vector<rank_state> m_ranks;
  std::uint64_t m_largest;
  nccl_functions m_nccl;
  std::vector<isthmus_communicator> m_exact, m_bf16;
  trio m_inboxes{nullptr, isthmus_tensor_parallel_free}, m_direct{nullptr, isthmus_tensor_parallel_free};
};

bench::bench(int ranks, std::uint64_t largest) : m_ranks(static_cast<std::size_t>(ranks)), m_largest(largest) {
  std::vector<ncclComm_t> plain(m_ranks.size()), symmetric(m_ranks.size());
  std::vector<int> devices(m_ranks.size());
  for (int rank = 0; rank < ranks; ++rank) devices[rank] = rank;
  check(m_nccl.init_all(plain.data(), ranks, devices.data()));
  check(m_nccl.init_all(symmetric.data(), ranks, devices.data()));
  std::vector<std::byte> inputs(std::min<std::uint64_t>(largest, 16 << 20));
  for (int rank = 0; rank < ranks; ++rank) {
    rank_state& state = m_ranks[rank];
    check(cudaSetDevice(rank));
    state.plain = plain[rank];
    state.symmetric = symmetric[rank];
    check(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&state.start));
    check(cudaEventCreate(&state.stop));
    check(m_nccl.mem_alloc(&state.send, largest));
    check(m_nccl.mem_alloc(&state.recv, largest));
    // A 16 MiB pattern of random floats, repeated; 16-bit types read pairs of random bits out of it.
    oracle::fill({ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::flavour::ordinary, 3}, rank, 0, inputs);
    for (std::uint64_t at = 0; at < largest; at += inputs.size())
      check(cudaMemcpy(static_cast<std::byte*>(state.send) + at, inputs.data(),
                       std::min<std::uint64_t>(inputs.size(), largest - at), cudaMemcpyDefault));
  }
  std::vector<ncclWindow_t> windows(2 * m_ranks.size());
  check(m_nccl.group_start());
  for (int rank = 0; rank < ranks; ++rank) {
    check(m_nccl.window_register(symmetric[rank], m_ranks[rank].send, largest, &windows[2 * rank],
                                 NCCL_WIN_COLL_SYMMETRIC));
    check(m_nccl.window_register(symmetric[rank], m_ranks[rank].recv, largest, &windows[2 * rank + 1],
                                 NCCL_WIN_COLL_SYMMETRIC));
  }
  check(m_nccl.group_end());
  m_exact = communicators("");
  m_bf16 = communicators(
      "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:two_shot_bf16\"\n"
      "[[rule]]\ncollective = \"allreduce\"\nranks = 2\nbytes = \"..2M\"\nuse = \"p2p:one_shot_bf16\"\n"
      "[[rule]]\ncollective = \"allreduce\"\nranks = \"3..\"\nbytes = \"..1M\"\nuse = \"p2p:one_shot_bf16\"\n");
  m_inboxes = tensor_parallel("two_shot");
  m_direct = tensor_parallel("two_shot_direct");
}

std::string write_rules(const std::string& rules) {
  std::string path = "/tmp/isthmus_p2p_bench.toml";
  std::ofstream(path) << rules;
  return path;
}

std::vector<isthmus_communicator> bench::communicators(const char* rules) {
  const std::string path = write_rules(rules);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < size(); ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
  std::vector<isthmus_communicator> made(m_ranks.size());
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = path.c_str();
  options.timeout_s = 60;
  check(isthmus_communicator_create_all(size(), devices.data(), &options, made.data()));
  return made;
}

// A handle that takes one algorithm for every size, on an exact wire.
trio bench::tensor_parallel(const char* algorithm) {
  const std::string path =
      write_rules("[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:" + std::string(algorithm) + "\"\n");
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  for (int rank = 0; rank < size(); ++rank) {
    devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    streams.push_back(m_ranks[rank].stream);
  }
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = path.c_str();
  options.timeout_s = 60;
  options.wire = ISTHMUS_WIRE_EXACT;
  trio made(isthmus_tensor_parallel_init(size(), devices.data(), streams.data(), &options),
            isthmus_tensor_parallel_free);
  if (made == nullptr) check(ISTHMUS_ERROR_BACKEND);
  return made;
}

void bench::sum_in_place(const trio& handle, std::uint64_t count, const type_row& type) {
  std::vector<void*> pointers;
  for (const rank_state& rank : m_ranks) pointers.push_back(rank.recv);
  if (!isthmus_tensor_parallel_allreduce(handle.get(), pointers.data(), count, type.type, ISTHMUS_ALL_ACTIVE))
    check(ISTHMUS_ERROR_BACKEND);
}

void bench::nccl(bool symmetric, std::uint64_t count, const type_row& type) {
  check(m_nccl.group_start());
  for (rank_state& rank : m_ranks)
    check(m_nccl.all_reduce(rank.send, rank.recv, count, type.nccl, ncclSum,
                            symmetric ? rank.symmetric : rank.plain, rank.stream));
  check(m_nccl.group_end());
}

void bench::isthmus(const std::vector<isthmus_communicator>& group, std::uint64_t count, const type_row& type) {
  check(isthmus_group_start());
  for (int rank = 0; rank < size(); ++rank)
    check(isthmus_allreduce(m_ranks[rank].send, m_ranks[rank].recv, count, type.type, ISTHMUS_SUM, group[rank],
                            m_ranks[rank].stream));
  check(isthmus_group_end());
}

std::vector<provider> bench::providers() {
  return {
      {"nccl", "nccl", "graph", [this](auto count, auto& type) { nccl(false, count, type); }},
      {"nccl_symmetric", "nccl", "graph", [this](auto count, auto& type) { nccl(true, count, type); }},
      {"isthmus", "p2p", "graph", [this](auto count, auto& type) { isthmus(m_exact, count, type); }},
      {"isthmus", "p2p", "bf16_wire", [this](auto count, auto& type) { isthmus(m_bf16, count, type); }, true},
      {"isthmus", "tensor_parallel:two_shot", "in_place",
       [this](auto count, auto& type) { sum_in_place(m_inboxes, count, type); }, false, 1 << 20},
      {"isthmus", "tensor_parallel:two_shot_direct", "in_place",
       [this](auto count, auto& type) { sum_in_place(m_direct, count, type); }, false, 1 << 20}};
}

float to_float(const type_row& type, const std::byte* element) {
  return static_cast<float>(oracle::decode(type.type, element));
}

// In place every call sums sums: each sample starts with the inputs again, so that they don't overflow.
void bench::prepare(const provider& which, std::uint64_t bytes) {
  if (!which.in_place()) return;
  for (const rank_state& rank : m_ranks)
    check(cudaMemcpyAsync(rank.recv, rank.send, bytes, cudaMemcpyDefault, rank.stream));
}

// Elements of the first and last 64 KiB that lie outside the error bound of the type and of the wire.
std::uint64_t bench::count_wrong(const provider& which, std::uint64_t count, const type_row& type) {
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaMemsetAsync(m_ranks[rank].recv, 0xa5, count * type.bytes, m_ranks[rank].stream));
  }
  prepare(which, count * type.bytes);
  which.call(count, type);
  for (rank_state& rank : m_ranks) check(cudaStreamSynchronize(rank.stream));
  const double u = which.mode == "bf16_wire"  ? std::ldexp(2.1, -8)
                   : type.bytes == 4          ? std::ldexp(1.0 * size(), -24)
                   : type.nccl == ncclFloat16 ? std::ldexp(1.0 * size(), -11)
                                              : std::ldexp(1.0 * size(), -8);
  const std::uint64_t part = std::min<std::uint64_t>(count, 65536 / type.bytes);
  std::uint64_t wrong = 0;
  for (const std::uint64_t first : {std::uint64_t(0), count - part}) {
    std::vector<std::vector<std::byte>> in(m_ranks.size(), std::vector<std::byte>(part * type.bytes)), out = in;
    for (int rank = 0; rank < size(); ++rank) {
      check(cudaMemcpy(in[rank].data(), static_cast<std::byte*>(m_ranks[rank].send) + first * type.bytes,
                       part * type.bytes, cudaMemcpyDefault));
      check(cudaMemcpy(out[rank].data(), static_cast<std::byte*>(m_ranks[rank].recv) + first * type.bytes,
                       part * type.bytes, cudaMemcpyDefault));
      wrong += which.name == "isthmus" && out[rank] != out[0];  // bit by bit
    }
    for (std::uint64_t i = 0; i < part; ++i) {
      double sum = 0, magnitude = 0;
      for (const auto& each : in) {
        const double x = to_float(type, &each[i * type.bytes]);
        sum += x;
        magnitude += std::fabs(x);
      }
      // Random bits read as 16-bit floats hold NaN and infinities, and overflow: no bound to check there.
      if (!(magnitude < (type.nccl == ncclFloat16 ? 6e4 : 1e38))) continue;
      for (const auto& each : out)
        wrong += !(std::fabs(to_float(type, &each[i * type.bytes]) - sum) <= u * magnitude + 1e-7);
    }
  }
  return wrong;
}

std::vector<cudaGraphExec_t> bench::capture(const provider& which, std::uint64_t count, const type_row& type,
                                            int calls) {
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaStreamBeginCapture(m_ranks[rank].stream, cudaStreamCaptureModeThreadLocal));
  }
  const auto record = [&](cudaEvent_t rank_state::* event) {
    for (int rank = 0; rank < size(); ++rank) {
      check(cudaSetDevice(rank));
      check(cudaEventRecordWithFlags(m_ranks[rank].*event, m_ranks[rank].stream, cudaEventRecordExternal));
    }
  };
  for (int i = 0; i < 2; ++i) which.call(count, type);
  record(&rank_state::start);
  for (int i = 0; i < calls; ++i) which.call(count, type);
  record(&rank_state::stop);
  std::vector<cudaGraphExec_t> graphs(m_ranks.size());
  std::vector<cudaGraph_t> captured(m_ranks.size());  // nothing may be instantiated while a stream captures
  for (int rank = 0; rank < size(); ++rank) check(cudaStreamEndCapture(m_ranks[rank].stream, &captured[rank]));
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaGraphInstantiate(&graphs[rank], captured[rank], 0));
    check(cudaGraphDestroy(captured[rank]));
  }
  return graphs;
}

double bench::sample(const provider& which, std::uint64_t bytes, const std::vector<cudaGraphExec_t>& graphs,
                     int calls) {
  prepare(which, bytes);
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaGraphLaunch(graphs[rank], m_ranks[rank].stream));
  }
  double worst = 0;
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaStreamSynchronize(m_ranks[rank].stream));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, m_ranks[rank].start, m_ranks[rank].stop));
    worst = std::max(worst, ms * 1e3 / calls);
  }
  return worst;
}

std::string bench::backend_of(isthmus_communicator communicator, std::uint64_t count, const type_row& type) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = type.type;
  operation.count = count;
  operation.send_buf = m_ranks[0].send;
  operation.recv_buf = m_ranks[0].recv;
  std::vector<char> text(1 << 16);
  std::size_t needed = 0;
  if (isthmus_communicator_explain(communicator, &operation, text.data(), text.size(), &needed) !=
      ISTHMUS_SUCCESS)
    return "?";
  const auto found = nlohmann::json::parse(text.data(), nullptr, false);
  return found.value("backend", "?") +
         (found.value("algorithm", "").empty() ? "" : ":" + found.value("algorithm", ""));
}

nlohmann::json bench::run(std::uint64_t bytes, const type_row& type, int samples) {
  const std::uint64_t count = bytes / type.bytes;
  const int calls = bytes <= (256 << 10) ? 64 : bytes <= (4 << 20) ? 24 : 6;
  auto all = providers();
  std::erase_if(all, [&](const provider& each) {
    return bytes < each.from_bytes || (each.float32_only && type.type != ISTHMUS_FLOAT32);
  });
  std::vector<std::uint64_t> wrong;
  std::vector<std::vector<cudaGraphExec_t>> graphs;
  std::vector<std::vector<double>> times(all.size());
  for (const provider& each : all) {
    wrong.push_back(count_wrong(each, count, type));
    graphs.push_back(capture(each, count, type, calls));
    sample(each, bytes, graphs.back(), calls);
  }
  for (int i = 0; i < samples; ++i)
    for (std::size_t turn = 0; turn < all.size(); ++turn) {
      const std::size_t which = (turn + i) % all.size();
      times[which].push_back(sample(all[which], bytes, graphs[which], calls));
    }
  nlohmann::json records = nlohmann::json::array();
  std::printf("%9lu %-8s", bytes, type.name);
  for (std::size_t which = 0; which < all.size(); ++which) {
    const double median = gpu_bench::median(times[which]);
    const bool by_rules = all[which].backend == "p2p";
    records.push_back(
        {{"collective", "allreduce"},
         {"dtype", type.name},
         {"op", "sum"},
         {"bytes", bytes},
         {"ranks", size()},
         {"provider", all[which].name},
         {"backend", by_rules ? backend_of(all[which].mode == "graph" ? m_exact[0] : m_bf16[0], count, type)
                              : all[which].backend},
         {"mode", all[which].mode},
         {"time_us", gpu_bench::spread(times[which])},
         {"algbw_gbs", bytes / median / 1e3},
         {"busbw_gbs", bytes / median / 1e3 * 2 * (size() - 1) / size()},
         {"wrong", wrong[which]}});
    const std::string& label = all[which].in_place() ? all[which].backend : all[which].name;
    std::printf(" %s%s %.2f%s", label.c_str(), all[which].mode == "bf16_wire" ? "/bf16" : "", median,
                wrong[which] != 0 ? " WRONG" : "");
    for (cudaGraphExec_t graph : graphs[which]) check(cudaGraphExecDestroy(graph));
  }
  std::printf("\n");
  return records;
}

__global__ void nothing() {}

// What one call of the trio costs the host thread for each device, and what a launch of nothing costs there.
nlohmann::json bench::host_cost() {
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  std::vector<void*> pointers;
  for (int rank = 0; rank < size(); ++rank) {
    devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    streams.push_back(m_ranks[rank].stream);
    pointers.push_back(m_ranks[rank].recv);
  }
  const auto handle = isthmus_tensor_parallel_init(size(), devices.data(), streams.data(), nullptr);
  if (handle == nullptr) check(ISTHMUS_ERROR_BACKEND);
  std::vector<double> samples, bare;
  for (int i = 0; i < 21; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < 50; ++call)
      for (int rank = 0; rank < size(); ++rank) {
        check(cudaSetDevice(rank));
        nothing<<<1, 32, 0, m_ranks[rank].stream>>>();
      }
    bare.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                   50 / size());
    for (rank_state& rank : m_ranks) check(cudaStreamSynchronize(rank.stream));
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < 50; ++call)
      if (!isthmus_tensor_parallel_allreduce(handle, pointers.data(), 1024, ISTHMUS_FLOAT32,
                                             ISTHMUS_ALL_ACTIVE))
        throw std::runtime_error("the trio refused");
    samples.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 50 /
        size());
    for (rank_state& rank : m_ranks) check(cudaStreamSynchronize(rank.stream));
  }
  isthmus_tensor_parallel_free(handle);
  const double median = gpu_bench::median(samples), bare_median = gpu_bench::median(bare);
  std::printf("host cost of the trio for each device: %.2f us; of launching nothing: %.2f us\n", median,
              bare_median);
  const double bandwidth = 4096 / median / 1e3;  // of the host's time; the format wants one
  return {{"collective", "allreduce"},
          {"dtype", "float32"},
          {"op", "sum"},
          {"bytes", 4096},
          {"ranks", size()},
          {"provider", "isthmus"},
          {"backend", "tensor_parallel"},
          {"mode", "stream"},
          {"host_overhead_us", median},
          {"bare_launch_us", bare_median},
          {"time_us", gpu_bench::spread(samples)},
          {"algbw_gbs", bandwidth},
          {"busbw_gbs", bandwidth * 2 * (size() - 1) / size()},
          {"wrong", 0}};
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Isthmus' peer-memory allreduce against NCCL"};
  int ranks = 0, samples = 25;
  std::string out;
  std::vector<std::uint64_t> sizes{128,       1 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10,
                                   512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20};
  app.add_option("--ranks", ranks, "devices (0: all)");
  app.add_option("--samples", samples, "samples of each provider and size");
  app.add_option("--sizes", sizes, "bytes");
  app.add_option("--out", out, "file for the records");
  CLI11_PARSE(app, argc, argv);
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess || found < 2) {
    std::puts("SKIPPED: fewer than two CUDA devices");
    return 77;
  }
  if (ranks == 0) ranks = std::min(found, 16);
  bench bench(ranks, *std::max_element(sizes.begin(), sizes.end()));
  std::printf("%d ranks, NCCL %s, median us over %d samples of the maximum over ranks\n", ranks,
              bench.nccl_version().c_str(), samples);
  nlohmann::json records = nlohmann::json::array();
  for (const type_row& type : types)
    for (const std::uint64_t bytes : sizes) {
      if (type.type != ISTHMUS_FLOAT32 && bytes != (8 << 10) && bytes != (1 << 20) && bytes != (64 << 20))
        continue;
      for (auto& record : bench.run(bytes, type, samples)) records.push_back(std::move(record));
    }
  records.push_back(bench.host_cost());
  if (!out.empty()) {
    const nlohmann::json versions = {{"isthmus", isthmus_version()}, {"nccl", bench.nccl_version()}};
    std::ofstream(out) << nlohmann::json{{"versions", versions}, {"records", records}}.dump(1) << "\n";
  }
  std::uint64_t wrong = 0;
  for (const auto& record : records) wrong += record.value("wrong", std::uint64_t(0));
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "p2p_bench: %s\n", failure.what());
  return 1;
}
