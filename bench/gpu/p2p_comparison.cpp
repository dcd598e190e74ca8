#include "p2p_comparison.hpp"

#include <isthmus/tools.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "harness/document.hpp"
#include "harness/patterns.hpp"
#include "inputs.hpp"
#include "oracle/number.hpp"
#include "rules_file.hpp"

namespace p2p_bench {

std::string allreduce_comparison::nccl_version() const {
  int version = 0;
  check(m_nccl.get_version(&version));
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

allreduce_comparison::allreduce_comparison(int ranks, std::uint64_t largest)
    : m_ranks(static_cast<std::size_t>(ranks)), m_largest(largest) {
  std::vector<ncclComm_t> plain(m_ranks.size()), symmetric(m_ranks.size());
  std::vector<int> devices(m_ranks.size());
  for (int rank = 0; rank < ranks; ++rank) devices[rank] = rank;
  check(m_nccl.init_all(plain.data(), ranks, devices.data()));
  check(m_nccl.init_all(symmetric.data(), ranks, devices.data()));
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
    gpu_bench::fill_repeated(state.send, largest, rank);  // 16-bit types read random bits
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
  m_staged_handle = tensor_parallel("two_shot");
  m_zero_copy_handle = tensor_parallel("two_shot_zero_copy");
}

std::vector<isthmus_communicator> allreduce_comparison::communicators(const char* rules) {
  const gpu_bench::rules_file file(rules);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < size(); ++rank) devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
  std::vector<isthmus_communicator> result(m_ranks.size());
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = file.path();
  options.timeout_s = 60;
  check(isthmus_communicator_create_all(size(), devices.data(), &options, result.data()));
  return result;
}

// A handle that uses one algorithm for every size, with an exact wire.
tensor_parallel_handle allreduce_comparison::tensor_parallel(const char* algorithm) {
  const gpu_bench::rules_file file(
      "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:" + std::string(algorithm) + "\"\n");
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  for (int rank = 0; rank < size(); ++rank) {
    devices.push_back({ISTHMUS_PLATFORM_CUDA, rank});
    streams.push_back(m_ranks[rank].stream);
  }
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = file.path();
  options.timeout_s = 60;
  options.wire = ISTHMUS_WIRE_EXACT;
  isthmus_tensor_parallel handle = nullptr;
  check(isthmus_tensor_parallel_create(size(), devices.data(), streams.data(), &options, &handle));
  return {handle, isthmus_tensor_parallel_destroy};
}

void allreduce_comparison::allreduce_in_place(const tensor_parallel_handle& handle, std::uint64_t count,
                                              const type_info& type) {
  std::vector<void*> pointers;
  for (const rank_state& rank : m_ranks) pointers.push_back(rank.recv);
  check(isthmus_tensor_parallel_allreduce(handle.get(), pointers.data(), count, type.type, ISTHMUS_ALL_ACTIVE));
}

void allreduce_comparison::nccl(bool symmetric, std::uint64_t count, const type_info& type) {
  check(m_nccl.group_start());
  for (rank_state& rank : m_ranks)
    check(m_nccl.all_reduce(rank.send, rank.recv, count, type.nccl, ncclSum,
                            symmetric ? rank.symmetric : rank.plain, rank.stream));
  check(m_nccl.group_end());
}

void allreduce_comparison::isthmus(const std::vector<isthmus_communicator>& group, std::uint64_t count,
                                   const type_info& type) {
  check(isthmus_group_start());
  for (int rank = 0; rank < size(); ++rank)
    check(isthmus_allreduce(m_ranks[rank].send, m_ranks[rank].recv, count, type.type, ISTHMUS_SUM, group[rank],
                            m_ranks[rank].stream));
  check(isthmus_group_end());
}

std::vector<allreduce_provider> allreduce_comparison::providers() {
  return {
      {"nccl", "nccl", "graph", [this](auto count, auto& type) { nccl(false, count, type); }},
      {"nccl_symmetric", "nccl", "graph", [this](auto count, auto& type) { nccl(true, count, type); }},
      {"isthmus", "p2p", "graph", [this](auto count, auto& type) { isthmus(m_exact, count, type); }},
      {"isthmus", "p2p", "bf16_wire", [this](auto count, auto& type) { isthmus(m_bf16, count, type); }, true},
      {"isthmus", "tensor_parallel:two_shot", "in_place",
       [this](auto count, auto& type) { allreduce_in_place(m_staged_handle, count, type); }, false, 1 << 20},
      {"isthmus", "tensor_parallel:two_shot_zero_copy", "in_place",
       [this](auto count, auto& type) { allreduce_in_place(m_zero_copy_handle, count, type); }, false,
       1 << 20}};
}

namespace {

float to_float(const type_info& type, const std::byte* element) {
  return static_cast<float>(oracle::decode(type.type, element));
}

}  // namespace

// In place, every call sums the previous result, so each sample starts with fresh inputs to prevent overflow.
void allreduce_comparison::prepare(const allreduce_provider& provider, std::uint64_t bytes) {
  if (!provider.in_place()) return;
  for (const rank_state& rank : m_ranks)
    check(cudaMemcpyAsync(rank.recv, rank.send, bytes, cudaMemcpyDefault, rank.stream));
}

// The number of elements in the first and last 64 KiB that exceed the error bound of the type and of the wire.
std::uint64_t allreduce_comparison::count_wrong(const allreduce_provider& provider, std::uint64_t count,
                                                const type_info& type) {
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaMemsetAsync(m_ranks[rank].recv, 0xa5, count * type.bytes, m_ranks[rank].stream));
  }
  prepare(provider, count * type.bytes);
  provider.call(count, type);
  for (rank_state& rank : m_ranks) check(cudaStreamSynchronize(rank.stream));
  const double u = provider.mode == "bf16_wire" ? std::ldexp(2.1, -8)
                   : type.bytes == 4            ? std::ldexp(1.0 * size(), -24)
                   : type.nccl == ncclFloat16   ? std::ldexp(1.0 * size(), -11)
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
      wrong += provider.name == "isthmus" && out[rank] != out[0];  // all ranks must hold the same bits
    }
    for (std::uint64_t i = 0; i < part; ++i) {
      double sum = 0, magnitude = 0;
      for (const auto& each : in) {
        const double x = to_float(type, &each[i * type.bytes]);
        sum += x;
        magnitude += std::fabs(x);
      }
      // Random bits as 16-bit floats include NaN and infinities, and sums overflow: there is no bound to check.
      if (!(magnitude < (type.nccl == ncclFloat16 ? 6e4 : 1e38))) continue;
      for (const auto& each : out)
        wrong += !(std::fabs(to_float(type, &each[i * type.bytes]) - sum) <= u * magnitude + 1e-7);
    }
  }
  return wrong;
}

std::vector<cudaGraphExec_t> allreduce_comparison::capture(const allreduce_provider& provider,
                                                           std::uint64_t count, const type_info& type,
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
  for (int i = 0; i < 2; ++i) provider.call(count, type);
  record(&rank_state::start);
  for (int i = 0; i < calls; ++i) provider.call(count, type);
  record(&rank_state::stop);
  std::vector<cudaGraphExec_t> graphs(m_ranks.size());
  std::vector<cudaGraph_t> captured(m_ranks.size());  // no graph may be instantiated while a stream captures
  for (int rank = 0; rank < size(); ++rank) check(cudaStreamEndCapture(m_ranks[rank].stream, &captured[rank]));
  for (int rank = 0; rank < size(); ++rank) {
    check(cudaSetDevice(rank));
    check(cudaGraphInstantiate(&graphs[rank], captured[rank], 0));
    check(cudaGraphDestroy(captured[rank]));
  }
  return graphs;
}

double allreduce_comparison::sample(const allreduce_provider& provider, std::uint64_t bytes,
                                    const std::vector<cudaGraphExec_t>& graphs, int calls) {
  prepare(provider, bytes);
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

std::string allreduce_comparison::backend_of(isthmus_communicator communicator, std::uint64_t count,
                                             const type_info& type) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = type.type;
  operation.count = count;
  operation.send_buf = m_ranks[0].send;
  operation.recv_buf = m_ranks[0].recv;
  std::vector<char> text(1 << 16);
  std::size_t required_bytes = 0;
  if (isthmus_communicator_explain(communicator, &operation, text.data(), text.size(), &required_bytes) !=
      ISTHMUS_SUCCESS)
    return "?";
  const auto document = nlohmann::json::parse(text.data(), nullptr, false);
  std::string backend = document.value("backend", "?");
  if (const std::string algorithm = document.value("algorithm", ""); !algorithm.empty())
    backend.append(1, ':').append(algorithm);
  return backend;
}

nlohmann::json allreduce_comparison::record(const allreduce_provider& provider, std::uint64_t bytes,
                                            const type_info& type, const std::vector<double>& us,
                                            std::uint64_t wrong) {
  const bool uses_rules = provider.backend == "p2p";
  const std::string backend =
      uses_rules ? backend_of(provider.mode == "graph" ? m_exact[0] : m_bf16[0], bytes / type.bytes, type)
                 : provider.backend;
  nlohmann::json result =
      bench::record_of({"allreduce", type.name, bytes, size(), provider.name, backend, provider.mode}, us,
                       bench::bandwidth_of(ISTHMUS_ALLREDUCE, bytes, size(), bench::median(us)));
  result["op"] = "sum";
  result["wrong"] = wrong;
  return result;
}

nlohmann::json allreduce_comparison::run(std::uint64_t bytes, const type_info& type, int samples) {
  const std::uint64_t count = bytes / type.bytes;
  const int calls = bytes <= (256 << 10) ? 64 : bytes <= (4 << 20) ? 24 : 6;
  auto all = providers();
  std::erase_if(all, [&](const allreduce_provider& each) {
    return bytes < each.from_bytes || (each.float32_only && type.type != ISTHMUS_FLOAT32);
  });
  std::vector<std::uint64_t> wrong;
  std::vector<std::vector<cudaGraphExec_t>> graphs;
  std::vector<std::vector<double>> times(all.size());
  for (const allreduce_provider& each : all) {
    wrong.push_back(count_wrong(each, count, type));
    graphs.push_back(capture(each, count, type, calls));
    sample(each, bytes, graphs.back(), calls);
  }
  for (int i = 0; i < samples; ++i)
    for (std::size_t position = 0; position < all.size(); ++position) {
      const std::size_t index = (position + i) % all.size();
      times[index].push_back(sample(all[index], bytes, graphs[index], calls));
    }
  nlohmann::json records = nlohmann::json::array();
  std::printf("%9lu %-8s", bytes, type.name);
  for (std::size_t index = 0; index < all.size(); ++index) {
    records.push_back(record(all[index], bytes, type, times[index], wrong[index]));
    const std::string& label = all[index].in_place() ? all[index].backend : all[index].name;
    std::printf(" %s%s %.2f%s", label.c_str(), all[index].mode == "bf16_wire" ? "/bf16" : "",
                bench::median(times[index]), wrong[index] != 0 ? " WRONG" : "");
    for (cudaGraphExec_t graph : graphs[index]) check(cudaGraphExecDestroy(graph));
  }
  std::printf("\n");
  return records;
}

}  // namespace p2p_bench
