// Allreduce, residual addition and RMSNorm as one call of Isthmus, against an allreduce of Isthmus or NCCL that is followed
// by a separate kernel, in captured graphs on the same buffers. Other libraries are plug-ins (--peer); if one has only an
// allreduce, the kernel follows it. One host thread drives all devices. bfloat16.
#include <isthmus/allreduce_rmsnorm.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "gpu_bench.hpp"
#include "harness/gpu/check.hpp"
#include "harness/gpu/peers.hpp"
#include "harness/gpu/timer.hpp"
#include "oracle/number.hpp"

namespace gpu_bench {
namespace {

using bench::median;

constexpr float eps = 1e-5F;

struct norm_shape {
  std::uint64_t tokens, hidden;
  std::uint64_t bytes() const { return tokens * hidden * 2; }
};

struct norm_settings : common_settings {
  std::vector<std::string> shapes{"1x6144",  "6x6144",  "32x6144",  "138x6144", "512x6144", "2048x6144",
                                  "32x8192", "64x8192", "128x8192", "138x8192", "32x16384"};

  std::vector<norm_shape> parsed_shapes() const {
    std::vector<norm_shape> result;
    for (const std::string& text : shapes) {
      unsigned long long tokens = 0, hidden = 0;
      if (std::sscanf(text.c_str(), "%llux%llu", &tokens, &hidden) != 2 || tokens == 0 || hidden % 8 != 0 ||
          hidden == 0 || hidden > ISTHMUS_RMSNORM_MAX_HIDDEN)
        throw std::runtime_error("--shapes " + text +
                                 ": use TOKENSxHIDDEN, with a hidden size that is a multiple of 8");
      result.push_back({tokens, hidden});
    }
    return result;
  }
};

// The buffers of one rank, in addition to those for the allreduce.
struct norm_buffers {
  std::byte *residual, *weight, *residual_out, *normalized;
};

class norm_comparison {
 public:
  norm_comparison(int ranks, const std::vector<std::string>& peers, std::uint64_t largest)
      : m_thread(m_single_thread[0], 0, ranks), m_plain(nccl_communicators(m_nccl, ranks)) {
    for (const char* const rules : {"", "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:one_shot\"\n",
                                    "[[rule]]\ncollective = \"allreduce\"\nuse = \"p2p:two_shot\"\n"})
      m_isthmus.push_back(isthmus_communicators(0, ranks, rules));
    m_thread.each([&](const device_lane& lane, std::size_t) {
      check(cudaSetDevice(lane.rank));
      const auto allocate = [&](std::uint64_t bytes, int inputs_of) {
        void* pointer = nullptr;
        check(cudaMalloc(&pointer, bytes));
        fill_inputs(pointer, bytes, inputs_of, ISTHMUS_BFLOAT16);
        return static_cast<std::byte*>(pointer);
      };
      m_buffers.push_back({allocate(largest, lane.rank), allocate(largest, 0)});
      // The residual and the weight are equal on all ranks.
      m_norm_buffers.push_back({allocate(largest, 101),
                                allocate(std::uint64_t{2} * ISTHMUS_RMSNORM_MAX_HIDDEN, 102),
                                allocate(largest, 0), allocate(largest, 0)});
    });
    m_peers = load_peers(peers, m_thread, m_buffers, largest);
  }

  std::string nccl_version() const { return m_nccl.version(); }
  nlohmann::json versions() const { return versions_of(m_nccl, m_peers); }
  void run(const norm_shape& shape, int samples, nlohmann::json& records);

 private:
  struct outputs {
    std::vector<std::uint16_t> residual, normalized;
  };

  std::vector<gpu_bench_peer_call> peer_arguments(const norm_shape& shape) const;
  // Adds the methods of a peer: fused, or an allreduce and the kernel.
  void add_peer_calls(const peer_library& peer, const norm_shape& shape, const bench_case& allreduce,
                      std::vector<device_call>& calls) const;
  device_call fused_call(const norm_shape& shape, std::size_t communicators, const char* backend) const {
    return {{"isthmus", backend, "graph", [this, shape, communicators] { fuse(shape, communicators); }},
            {ISTHMUS_ALLREDUCE, shape.bytes(), ISTHMUS_BFLOAT16},
            m_buffers};
  }
  void fuse(const norm_shape& shape, std::size_t communicators) const {
    m_thread.each([&](const device_lane& lane, std::size_t i) {
      const norm_buffers& own = m_norm_buffers[i];
      isthmus_allreduce_rmsnorm_arguments call{};
      call.struct_bytes = sizeof call;
      call.tokens = shape.tokens;
      call.hidden = shape.hidden;
      call.datatype = call.output = ISTHMUS_BFLOAT16;
      call.eps = static_cast<double>(eps);
      call.input = m_buffers[i].send;
      call.residual = own.residual;
      call.weight = own.weight;
      call.residual_out = own.residual_out;
      call.normalized = own.normalized;
      call.stream = lane.stream;
      check(isthmus_allreduce_rmsnorm(m_isthmus[communicators][i], &call));
    });
  }
  void add_norm(const norm_shape& shape) const {
    m_thread.each([&](const device_lane& lane, std::size_t i) {
      const norm_buffers& own = m_norm_buffers[i];
      launch_add_norm(m_buffers[i].recv, own.residual, own.weight, own.residual_out, own.normalized,
                      shape.tokens, shape.hidden, eps, lane.stream);
    });
  }
  // An allreduce that is followed by the kernel.
  device_call followed(device_call call, const norm_shape& shape, const char* provider) const {
    call.provider = provider;
    call.mode = "graph";
    call.run = [this, shape, allreduce = call.run] {
      allreduce();
      add_norm(shape);
    };
    return call;
  }

  outputs run_once(const device_call& call, const norm_shape& shape, std::size_t lane) const;
  // Compares rank 0's outputs of three rows with wide arithmetic on the sum in its receive buffer.
  void check_rows(const norm_shape& shape, const outputs& actual) const;
  std::vector<std::uint64_t> count_wrong_elements(const std::vector<device_call>& calls,
                                                  const norm_shape& shape) const;

  bench::thread_ranks m_single_thread{1};
  device_thread m_thread;
  bench::nccl_library m_nccl;
  std::vector<bench::nccl_comm> m_plain;
  std::vector<std::vector<isthmus_communicator>> m_isthmus;  // default rules, one_shot, two_shot
  std::vector<rank_buffers> m_buffers;
  std::vector<norm_buffers> m_norm_buffers;
  std::vector<peer_library> m_peers;
};

std::vector<gpu_bench_peer_call> norm_comparison::peer_arguments(const norm_shape& shape) const {
  std::vector<gpu_bench_peer_call> arguments =
      allreduce_arguments(m_thread, {ISTHMUS_ALLREDUCE, shape.bytes(), ISTHMUS_BFLOAT16}, m_buffers);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const norm_buffers& own = m_norm_buffers[i];
    gpu_bench_peer_call& call = arguments[i];
    call.tokens = shape.tokens;
    call.hidden = shape.hidden;
    call.output = nullptr;
    call.residual = own.residual;
    call.weight = own.weight;
    call.residual_out = own.residual_out;
    call.normalized = own.normalized;
    call.eps = eps;
  }
  return arguments;
}

void norm_comparison::add_peer_calls(const peer_library& peer, const norm_shape& shape,
                                     const bench_case& allreduce, std::vector<device_call>& calls) const {
  std::vector<device_call> added = peer.make_calls(m_thread, allreduce, m_buffers, peer_arguments(shape));
  if (added.empty()) {
    added =
        peer.make_calls(m_thread, allreduce, m_buffers, allreduce_arguments(m_thread, allreduce, m_buffers));
    for (device_call& call : added) call = followed(call, shape, (peer.name() + "_unfused").c_str());
  }
  calls.insert(calls.end(), added.begin(), added.end());
}

norm_comparison::outputs norm_comparison::run_once(const device_call& call, const norm_shape& shape,
                                                   std::size_t lane) const {
  m_thread.each([&](const device_lane&, std::size_t i) {
    check(cudaMemset(m_norm_buffers[i].residual_out, 0xff, shape.bytes()));
    check(cudaMemset(m_norm_buffers[i].normalized, 0xff, shape.bytes()));
    check(cudaDeviceSynchronize());
  });
  call.run();
  m_thread.wait();
  outputs result{std::vector<std::uint16_t>(shape.bytes() / 2), std::vector<std::uint16_t>(shape.bytes() / 2)};
  check(
      cudaMemcpy(result.residual.data(), m_norm_buffers[lane].residual_out, shape.bytes(), cudaMemcpyDefault));
  check(
      cudaMemcpy(result.normalized.data(), m_norm_buffers[lane].normalized, shape.bytes(), cudaMemcpyDefault));
  return result;
}

void norm_comparison::check_rows(const norm_shape& shape, const outputs& actual) const {
  constexpr isthmus_datatype datatype = ISTHMUS_BFLOAT16;
  const oracle::float_format& format = oracle::format_of(datatype);
  const auto download = [](const std::byte* from, std::uint64_t count) {
    std::vector<std::uint16_t> result(count);
    check(cudaMemcpy(result.data(), from, count * 2, cudaMemcpyDefault));
    return result;
  };
  const auto value = [](const std::vector<std::uint16_t>& from, std::uint64_t i) {
    return oracle::decode(datatype, reinterpret_cast<const std::byte*>(&from[i]));
  };
  const auto sum = download(m_buffers.front().recv, shape.tokens * shape.hidden),
             residual = download(m_norm_buffers.front().residual, shape.tokens * shape.hidden),
             weight = download(m_norm_buffers.front().weight, shape.hidden);
  // The roundoff of bfloat16, and the errors of a few operations and of the sum of the squares in float32.
  const long double relative = oracle::unit_roundoff(format) + std::ldexp(1.0L, -18);
  for (const std::uint64_t row : {std::uint64_t{0}, shape.tokens / 2, shape.tokens - 1}) {
    std::vector<long double> x(shape.hidden);
    long double squares = 0;
    for (std::uint64_t i = 0; i < shape.hidden; ++i) {
      const std::uint64_t at = row * shape.hidden + i;
      const float added = static_cast<float>(value(sum, at)) + static_cast<float>(value(residual, at));
      x[i] = oracle::round_to(format, static_cast<long double>(added));
      squares += x[i] * x[i];
      if (value(actual.residual, at) != x[i]) throw std::runtime_error("a residual differs from the oracle");
    }
    const long double mean = squares / static_cast<long double>(shape.hidden);
    const long double factor = 1 / std::sqrt(mean + static_cast<long double>(eps));
    for (std::uint64_t i = 0; i < shape.hidden; ++i) {
      const long double expected = x[i] * factor * value(weight, i);
      const long double bound = relative * std::fabs(expected) + oracle::underflow_error(format);
      if (!(std::fabs(value(actual.normalized, row * shape.hidden + i) - expected) <= bound))
        throw std::runtime_error("a normalized element differs from the oracle");
    }
  }
}

// For each call, the number of elements that differ from the first call on rank 0: for the residual in any bit, for the
// normalized rows by more than one unit in the last place, because the kernel adds the squares in another order. The oracle
// checks the sum and some rows of the first call. Other libraries may add more than two contributions in another order.
std::vector<std::uint64_t> norm_comparison::count_wrong_elements(const std::vector<device_call>& calls,
                                                                 const norm_shape& shape) const {
  if (count_wrong(m_thread, calls.front()) != 0) throw std::runtime_error("the sum differs from the oracle");
  const outputs expected = run_once(calls.front(), shape, 0);
  check_rows(shape, expected);
  std::vector<std::uint64_t> wrong;
  for (const device_call& call : calls) {
    wrong.push_back(0);
    if (!call.provider.starts_with("isthmus") && m_thread.size() > 2) continue;
    for (std::size_t lane = 0; lane < m_buffers.size(); ++lane) {
      const outputs actual = run_once(call, shape, lane);
      for (std::size_t i = 0; i < actual.residual.size(); ++i) {
        const int distance = static_cast<int>(actual.normalized[i]) - static_cast<int>(expected.normalized[i]);
        wrong.back() += actual.residual[i] != expected.residual[i] || std::abs(distance) > 1 ? 1 : 0;
      }
    }
  }
  return wrong;
}

void norm_comparison::run(const norm_shape& shape, int samples, nlohmann::json& records) {
  const bench_case allreduce{ISTHMUS_ALLREDUCE, shape.bytes(), ISTHMUS_BFLOAT16};
  const device_call own_allreduce = make_isthmus_call(m_thread, allreduce, m_buffers, m_isthmus[0]);
  std::vector<device_call> calls{
      followed(own_allreduce, shape, "isthmus_unfused"), fused_call(shape, 0, "p2p"),
      fused_call(shape, 1, "p2p:one_shot"), fused_call(shape, 2, "p2p:two_shot"),
      followed(make_nccl_call(m_thread, allreduce, m_buffers, m_nccl, m_plain), shape, "nccl")};
  for (const peer_library& peer : m_peers) add_peer_calls(peer, shape, allreduce, calls);
  const std::vector<std::uint64_t> wrong = count_wrong_elements(calls, shape);
  // Parts of the unfused sequence, for comparison.
  calls.push_back(own_allreduce);
  calls.back().provider = "isthmus_allreduce";
  calls.push_back({{"add_norm", "", "graph", [this, shape] { add_norm(shape); }}, allreduce, m_buffers});
  std::vector<captured_graph> graphs;
  const int repetitions = shape.bytes() <= (256 << 10) ? 64 : shape.bytes() <= (4 << 20) ? 24 : 6;
  for (const device_call& call : calls) graphs.push_back(capture(m_thread, call, repetitions));
  bench::interleave(calls.size(), 2, samples, [&](std::size_t i, int round) {
    const double us = graph_us(m_thread, calls[i], graphs[i]);
    if (round >= 0) calls[i].us.push_back(us);
  });
  std::printf("%5llu x %5llu", static_cast<unsigned long long>(shape.tokens),
              static_cast<unsigned long long>(shape.hidden));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    device_call& call = calls[i];
    call.mode = "graph";
    nlohmann::json line = bench::record_of(
        {"allreduce_rmsnorm", "bfloat16", shape.bytes(), m_thread.size()}, call,
        bench::bandwidth_of(ISTHMUS_ALLREDUCE, shape.bytes(), m_thread.size(), median(call.us)));
    line["op"] = "sum";
    line["tokens"] = shape.tokens;
    line["hidden"] = shape.hidden;
    line["kernels"] = graphs[i].kernels;
    if (i < wrong.size()) line["wrong"] = wrong[i];
    records.push_back(std::move(line));
    const bool is_wrong = i < wrong.size() && wrong[i] != 0;
    std::printf(" | %s%s%s %.2f%s", call.provider.c_str(), call.backend.empty() ? "" : " ",
                call.backend.c_str(), median(call.us), is_wrong ? " WRONG" : "");
    destroy(graphs[i]);
  }
  std::printf("\n");
}

int run(const norm_settings& settings) {
  const int ranks = std::min(settings.find_ranks(2), 8);
  if (ranks == 0) return exit_skipped;
  const std::vector<norm_shape> shapes = settings.parsed_shapes();
  std::uint64_t largest = 0;
  for (const norm_shape& shape : shapes) largest = std::max(largest, shape.bytes());
  norm_comparison comparison(ranks, settings.peers, largest);
  std::printf("%d ranks, NCCL %s, bfloat16, median us over %d samples of the maximum over ranks, in graphs\n",
              ranks, comparison.nccl_version().c_str(), settings.samples);
  nlohmann::json records = nlohmann::json::array();
  int status = 0;
  for (const norm_shape& shape : shapes) {
    comparison.run(shape, settings.samples, records);
    status = settings.write(records, comparison.versions());  // a later shape may not complete
  }
  return status;
}

}  // namespace

void add_fused_norm(CLI::App& app, program& result) {
  const auto settings = std::make_shared<norm_settings>();
  settings->samples = 25;
  CLI::App* const subcommand = result.add(
      app, "fused_norm", "allreduce, residual addition and RMSNorm as one call against separate calls",
      settings, "--samples", "", [settings] { return run(*settings); });
  subcommand->add_option("--ranks", settings->ranks, "ranks, one per device (0: all devices)");
  subcommand->add_option("--shapes", settings->shapes, "TOKENSxHIDDEN, ...")
      ->delimiter(',')
      ->capture_default_str();
  settings->add_peers(*subcommand);
}

}  // namespace gpu_bench
