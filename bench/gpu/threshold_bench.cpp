// The paper's threshold on devices, found and judged: one rank a process, under mpiexec.
//
// First it times each collective and size over MPI (Isthmus' hybrid backend) and over NCCL and writes the
// sizes below which MPI was faster as a profile, which selection reads (ISTHMUS_PROFILE). Then it runs with
// that profile, by turns with what a program without Isthmus has: NCCL itself, MPI with copies to pinned memory
// around it, and MPI on the device buffers where the library reads them. A time is from the call to the moment
// when the stream is idle; a sample the middle of several calls in a row, of the slowest rank; a figure the
// median over samples.
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <isthmus/mpi.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "bare_nccl.hpp"
#include "check.hpp"
#include "pairs.hpp"
#include "statistics.hpp"

namespace gpu_bench {
namespace {

using steady = std::chrono::steady_clock;

constexpr double tolerance = 1.03;  // of issue and docs: what the tuned threshold may cost at most

void check_mpi(int code) {
  if (code != MPI_SUCCESS) throw std::runtime_error("MPI failed with code " + std::to_string(code));
}

bool mpi_reads_devices() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

// A way to run one collective, from the call to the result.
struct contender {
  std::string provider, backend, mode;
  std::function<void()> run;
  std::vector<double> us;  // of the slowest rank
};

class bench {
 public:
  bench(std::uint64_t largest, int samples);
  ~bench() { MPI_Barrier(MPI_COMM_WORLD); }

  int rank() const { return m_self.rank; }
  int size() const { return m_self.size; }
  std::string nccl_version() const { return m_nccl.version(); }

  isthmus_communicator make(const std::string& rules) const;
  // What Isthmus takes for this call, as explain says it.
  std::string taken(isthmus_communicator communicator, const bench_case& what) const;
  contender ours(const bench_case& what, isthmus_communicator communicator, std::string backend);
  contender raw_nccl(const bench_case& what);
  contender raw_mpi(const bench_case& what, bool direct);
  // Times all by turns. Every rank calls it with the same contenders.
  void time(std::vector<contender>& contenders, std::uint64_t bytes);
  // Words of `ours` that differ from NCCL's, over all ranks.
  std::uint64_t wrong(const bench_case& what, const contender& mine, const contender& nccl);

 private:
  void mpi_call(const bench_case& what, const void* send, void* recv) const;
  std::vector<std::byte> output(const bench_case& what, const contender& one);

  rank_state m_self;
  int m_samples;
  bare_nccl m_nccl;
  std::byte* m_host_send = nullptr;
  std::byte* m_host_recv = nullptr;
};

bench::bench(std::uint64_t largest, int samples) : m_samples(samples) {
  MPI_Comm_rank(MPI_COMM_WORLD, &m_self.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &m_self.size);
  m_self.device = m_self.rank;
  m_self.native = &m_nccl.functions();
  check(cudaSetDevice(m_self.device));
  check(cudaStreamCreateWithFlags(&m_self.stream, cudaStreamNonBlocking));
  isthmus::xccl::xccl_unique_id id{};
  if (m_self.rank == 0) id = m_nccl.unique_id();
  check_mpi(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
  m_self.raw = m_nccl.join(id, m_self.rank, m_self.size);

  const std::uint64_t send = largest_send(largest, m_self.size), recv = largest_recv(largest, m_self.size);
  check(cudaMalloc(reinterpret_cast<void**>(&m_self.send), send));
  check(cudaMalloc(reinterpret_cast<void**>(&m_self.recv), recv));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_send), send, 0));
  check(cudaHostAlloc(reinterpret_cast<void**>(&m_host_recv), recv, 0));
  // Small random integers: their sums are exact in any order, so all contenders must agree in every bit.
  auto* const numbers = reinterpret_cast<float*>(m_host_send);
  std::uint64_t state = 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(m_self.rank);
  for (std::uint64_t i = 0; i < send / sizeof(float); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    numbers[i] = static_cast<float>(static_cast<int>(state >> 54) - 512);
  }
  check(cudaMemcpy(m_self.send, m_host_send, send, cudaMemcpyHostToDevice));
}

isthmus_communicator bench::make(const std::string& rules) const {
  // The environment is a configuration layer of its own; the same on all ranks.
  if (rules.empty())
    unsetenv("ISTHMUS_RULE");
  else
    setenv("ISTHMUS_RULE", rules.c_str(), 1);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.device = {ISTHMUS_PLATFORM_CUDA, m_self.device};
  options.timeout_s = 60;
  return isthmus::mpi::create(MPI_COMM_WORLD, &options);
}

std::string bench::taken(isthmus_communicator communicator, const bench_case& what) const {
  rank_state with = m_self;
  with.communicator = communicator;
  const pair_of_calls calls(what, with);
  std::vector<char> text(1 << 18);
  check(isthmus_communicator_explain(communicator, &calls.operation(), text.data(), text.size(), nullptr));
  return nlohmann::json::parse(text.data()).at("backend").get<std::string>();
}

contender bench::ours(const bench_case& what, isthmus_communicator communicator, std::string backend) {
  const auto with = std::make_shared<rank_state>(m_self);
  with->communicator = communicator;
  const auto calls = std::make_shared<pair_of_calls>(what, *with);
  return {"isthmus",
          std::move(backend),
          "stream",
          [this, with, calls] {
            check(static_cast<isthmus_status>(calls->isthmus()));
            check(cudaStreamSynchronize(m_self.stream));
          },
          {}};
}

contender bench::raw_nccl(const bench_case& what) {
  const auto calls = std::make_shared<pair_of_calls>(what, m_self);
  return {"nccl",
          "",
          "stream",
          [this, calls] {
            if (calls->raw() != 0) throw std::runtime_error("NCCL failed");
            check(cudaStreamSynchronize(m_self.stream));
          },
          {}};
}

void bench::mpi_call(const bench_case& what, const void* send, void* recv) const {
  const auto all = static_cast<int>(what.bytes / sizeof(float));
  const int block = all / m_self.size;
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (what.collective) {
    case ISTHMUS_ALLREDUCE: return check_mpi(MPI_Allreduce(send, recv, all, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_REDUCE: return check_mpi(MPI_Reduce(send, recv, all, MPI_FLOAT, MPI_SUM, 0, world));
    case ISTHMUS_BROADCAST:
      return check_mpi(MPI_Bcast(m_self.rank == 0 ? const_cast<void*>(send) : recv, all, MPI_FLOAT, 0, world));
    case ISTHMUS_ALLGATHER: return check_mpi(MPI_Allgather(send, all, MPI_FLOAT, recv, all, MPI_FLOAT, world));
    case ISTHMUS_REDUCE_SCATTER:
      return check_mpi(MPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, world));
    case ISTHMUS_ALLTOALL:
      return check_mpi(MPI_Alltoall(send, block, MPI_FLOAT, recv, block, MPI_FLOAT, world));
    default: throw std::runtime_error("no MPI form of this collective here");
  }
}

// As a careful program does it: pinned memory, copies on the stream, no wait that is not needed.
contender bench::raw_mpi(const bench_case& what, bool direct) {
  const bool sends = what.collective != ISTHMUS_BROADCAST || m_self.rank == 0;
  std::uint64_t out = output_bytes(what, m_self);
  if (what.collective == ISTHMUS_BROADCAST && m_self.rank == 0) out = 0;  // MPI has one buffer there
  return {
      "openmpi",
      "",
      direct ? "gpu_aware" : "staged",
      [this, what, direct, sends, out] {
        if (direct) return mpi_call(what, m_self.send, m_self.recv);
        if (sends)
          check(cudaMemcpyAsync(m_host_send, m_self.send, what.bytes, cudaMemcpyDeviceToHost, m_self.stream));
        check(cudaStreamSynchronize(m_self.stream));
        mpi_call(what, m_host_send, m_host_recv);
        if (out == 0) return;
        check(cudaMemcpyAsync(m_self.recv, m_host_recv, out, cudaMemcpyHostToDevice, m_self.stream));
        check(cudaStreamSynchronize(m_self.stream));
      },
      {}};
}

// MPI leaves the caches full of its copies and the device idle, so that NCCL's call after it took up to 1.5
// times as long on 2 H200. Each contender therefore makes its calls in a row, and the first does not count.
void bench::time(std::vector<contender>& contenders, std::uint64_t bytes) {
  const int calls = bytes <= (64 << 10) ? 20 : bytes <= (4 << 20) ? 6 : 3;
  for (contender& each : contenders) each.us.clear();
  for (int sample = -1; sample < m_samples; ++sample)
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      contender& who = contenders[(static_cast<std::size_t>(sample + 1) + turn) % contenders.size()];
      std::vector<double> us;
      for (int call = -1; call < calls; ++call) {
        check_mpi(MPI_Barrier(MPI_COMM_WORLD));
        const auto start = steady::now();
        who.run();
        if (call >= 0) us.push_back(std::chrono::duration<double, std::micro>(steady::now() - start).count());
      }
      const double mine = median(us);
      double slowest = 0;
      check_mpi(MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
      if (sample >= 0) who.us.push_back(slowest);  // the first sample warms up
    }
}

std::vector<std::byte> bench::output(const bench_case& what, const contender& one) {
  const std::uint64_t bytes = output_bytes(what, m_self);
  std::vector<std::byte> host(bytes);
  if (bytes != 0) check(cudaMemset(m_self.recv, 0xa5, bytes));
  check(cudaDeviceSynchronize());
  one.run();
  if (bytes != 0) check(cudaMemcpy(host.data(), m_self.recv, bytes, cudaMemcpyDeviceToHost));
  return host;
}

std::uint64_t bench::wrong(const bench_case& what, const contender& mine, const contender& nccl) {
  const std::vector<std::byte> theirs = output(what, nccl), got = output(what, mine);
  unsigned long long differing = 0, all = 0;
  for (std::size_t at = 0; at + 4 <= got.size(); at += 4)
    if (std::memcmp(&got[at], &theirs[at], 4) != 0) ++differing;
  check_mpi(MPI_Allreduce(&differing, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD));
  return all;
}

nlohmann::json record(const bench_case& what, int ranks, const contender& one, std::uint64_t wrong) {
  nlohmann::json line = {
      {"collective", what.name}, {"dtype", "float32"},       {"op", "sum"},      {"bytes", what.bytes},
      {"ranks", ranks},          {"provider", one.provider}, {"mode", one.mode}, {"time_us", spread(one.us)},
      {"wrong", wrong}};
  const double bandwidth = static_cast<double>(what.bytes) / median(one.us) / 1e3;
  line["algbw_gbs"] = bandwidth;
  line["busbw_gbs"] = bandwidth * bus_factor(what, ranks);
  if (!one.backend.empty()) line["backend"] = one.backend;
  return line;
}

// The size from which on NCCL was never slower, for each collective; 0: always NCCL, nothing: never.
using thresholds = std::map<std::string, std::optional<std::uint64_t>>;

std::string profile_text(const thresholds& found, int ranks) {
  std::string text =
      "# Written by threshold_bench: below these sizes MPI was faster than NCCL on device buffers.\n";
  for (const auto& [collective, size] : found) {
    if (size && *size == 0) continue;
    text += "\n[[rule]]\ncollective = [\"" + collective + "\"]\nplatform = [\"cuda\"]\nranks = \"" +
            std::to_string(ranks) + "\"\n";
    if (size) text += "bytes = \"0.." + std::to_string(*size) + "\"\n";
    text += "use = \"hybrid\"\n";
  }
  return text;
}

struct settings {
  std::vector<std::uint64_t> sizes{128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20};
  int samples = 15;
  std::string out, profile = "threshold-profile.toml";
};

std::vector<bench_case> cases_of(std::uint64_t bytes) {
  std::vector<bench_case> all = cases(bytes);
  std::erase_if(all, [](const bench_case& what) {
    switch (what.collective) {
      case ISTHMUS_ALLREDUCE:
      case ISTHMUS_REDUCE:
      case ISTHMUS_BROADCAST:
      case ISTHMUS_ALLGATHER:
      case ISTHMUS_REDUCE_SCATTER:
      case ISTHMUS_ALLTOALL: return false;
      default: return true;
    }
  });
  return all;
}

thresholds tune(bench& machine, const settings& wanted, nlohmann::json& records) {
  const isthmus_communicator over_mpi = machine.make("platform=cuda use=hybrid");
  const isthmus_communicator over_nccl = machine.make("platform=cuda use=nccl");
  thresholds found;
  for (auto bytes = wanted.sizes.rbegin(); bytes != wanted.sizes.rend(); ++bytes)
    for (const bench_case& what : cases_of(*bytes)) {
      std::vector<contender> both{machine.ours(what, over_mpi, machine.taken(over_mpi, what)),
                                  machine.ours(what, over_nccl, machine.taken(over_nccl, what))};
      machine.time(both, *bytes);
      const contender reference = machine.raw_nccl(what);
      for (const contender& one : both)
        records.push_back(record(what, machine.size(), one, machine.wrong(what, one, reference)));
      const bool mpi_is_faster = median(both[0].us) < median(both[1].us);
      // Down from the largest size, as long as NCCL stays ahead.
      auto& size = found.try_emplace(what.name, std::nullopt).first->second;
      const bool ahead_so_far = bytes == wanted.sizes.rbegin() || (size && *size == *std::prev(bytes));
      if (!mpi_is_faster && ahead_so_far) size = bytes + 1 == wanted.sizes.rend() ? 0 : *bytes;
    }
  isthmus_communicator_destroy(over_mpi);
  isthmus_communicator_destroy(over_nccl);
  return found;
}

void judge(bench& machine, const settings& wanted, nlohmann::json& records) {
  const isthmus_communicator tuned = machine.make("");
  int cases_judged = 0, kept = 0, noisy = 0;
  double worst = 0;
  if (machine.rank() == 0)
    std::printf("%-15s %10s | %8s | %9s %9s %9s %9s | %7s %7s\n", "collective", "bytes", "taken", "isthmus",
                "nccl", "mpi", "mpi gpu", "ratio", "a/a");
  for (const std::uint64_t bytes : wanted.sizes)
    for (const bench_case& what : cases_of(bytes)) {
      std::vector<contender> all{machine.ours(what, tuned, machine.taken(tuned, what)), machine.raw_nccl(what),
                                 machine.raw_nccl(what), machine.raw_mpi(what, false)};
      if (mpi_reads_devices()) all.push_back(machine.raw_mpi(what, true));
      machine.time(all, bytes);
      const std::uint64_t wrong = machine.wrong(what, all[0], all[1]);
      for (std::size_t i = 0; i < all.size(); ++i)
        if (i != 2) records.push_back(record(what, machine.size(), all[i], i == 0 ? wrong : 0));
      double best = median(all[1].us);
      for (std::size_t i = 3; i < all.size(); ++i) best = std::min(best, median(all[i].us));
      const double ratio = median(all[0].us) / best, again = median(all[2].us) / median(all[1].us);
      ++cases_judged;
      kept += ratio <= tolerance ? 1 : 0;
      noisy += again > tolerance || again < 1 / tolerance ? 1 : 0;
      worst = std::max(worst, ratio);
      if (machine.rank() == 0)
        std::printf("%-15s %10llu | %8s | %9.2f %9.2f %9.2f %9.2f | %7.3f %7.3f\n", what.name,
                    static_cast<unsigned long long>(bytes), all[0].backend.c_str(), median(all[0].us),
                    median(all[1].us), median(all[3].us), all.size() > 4 ? median(all[4].us) : 0.0, ratio,
                    again);
      if (wrong != 0) throw std::runtime_error(std::string(what.name) + " gave wrong results");
    }
  if (machine.rank() == 0)
    std::printf(
        "threshold: %d of %d cases at most %g times the better of NCCL and MPI, worst %.3f; NCCL beside itself "
        "left that band in %d\n",
        kept, cases_judged, tolerance, worst, noisy);
  isthmus_communicator_destroy(tuned);
}

void run(const settings& wanted) {
  bench machine(wanted.sizes.back(), wanted.samples);
  nlohmann::json records = nlohmann::json::array();
  setenv("ISTHMUS_PROFILE", "none", 1);
  const thresholds found = tune(machine, wanted, records);
  if (machine.rank() == 0) {
    std::ofstream(wanted.profile) << profile_text(found, machine.size());
    for (const auto& [collective, size] : found)
      std::printf("%-15s over MPI below %s\n", collective.c_str(),
                  size ? (std::to_string(*size) + " B").c_str() : "every size");
  }
  check_mpi(MPI_Barrier(MPI_COMM_WORLD));
  setenv("ISTHMUS_PROFILE", wanted.profile.c_str(), 1);
  judge(machine, wanted, records);
  if (machine.rank() == 0 && !wanted.out.empty())
    std::ofstream(wanted.out) << nlohmann::json{
        {"versions",
         {{"isthmus", isthmus_version()},
          {"nccl", machine.nccl_version()},
          {"mpi", isthmus::mpi::detail::library()}}},
        {"records", records}}.dump(1);
}

}  // namespace
}  // namespace gpu_bench

int main(int argc, char** argv) {
  gpu_bench::settings wanted;
  CLI::App app{"Finds the threshold between MPI and NCCL on device buffers, and judges it"};
  app.add_option("--bytes", wanted.sizes, "sizes in bytes, ascending");
  app.add_option("--samples", wanted.samples, "samples of each figure")->check(CLI::Range(3, 10000));
  app.add_option("--profile", wanted.profile, "profile to write and to judge");
  app.add_option("--out", wanted.out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  int level = 0, ranks = 0, devices = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (level < MPI_THREAD_MULTIPLE || ranks < 2 || devices < ranks) {
    std::puts("SKIPPED: this needs MPI_THREAD_MULTIPLE, two ranks and a device for each");
    MPI_Finalize();
    return 77;
  }
  try {
    gpu_bench::run(wanted);
    std::fflush(stdout);
    MPI_Finalize();
    std::_Exit(0);  // NCCL's communicator goes with the process; the measurement is complete
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "failed: %s\n", failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 1;
}
