// The paper's threshold on devices, found and judged: one rank a process, under mpiexec.
//
// First it times each collective and size over MPI (Isthmus' hybrid backend) and over NCCL and writes the
// sizes below which MPI was faster as a profile, which selection reads (ISTHMUS_PROFILE). Then it runs with
// that profile, by turns with what a program without Isthmus has: NCCL itself, MPI with copies to pinned memory
// around it, and MPI on the device buffers where the library reads them. A time is from the call to the moment
// when the stream is idle; a sample the middle of several calls in a row, of the slowest rank; a figure the
// median over samples.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <isthmus/mpi.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "harness/command.hpp"
#include "harness/patterns.hpp"
#include "threshold_contest.hpp"

namespace gpu_bench {
namespace {

using bench::median;

constexpr double tolerance = 1.03;  // of issue and docs: what the tuned threshold may cost at most

nlohmann::json record(const bench_case& what, int ranks, const contender& one, std::uint64_t wrong) {
  nlohmann::json line =
      bench::record_of({what.name, "float32", what.bytes, ranks, one.provider, one.backend, one.mode}, one.us,
                       bench::bandwidth_of(what.collective, what.bytes, ranks, median(one.us)));
  line["op"] = "sum";
  line["wrong"] = wrong;
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
  std::string out, profile = "threshold-profile.toml", command;
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

thresholds tune(contest& machine, const settings& wanted, nlohmann::json& records) {
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

// How the tuned threshold does against the better of NCCL and MPI, over all cases.
class verdict {
 public:
  // Of Isthmus, NCCL, NCCL again, and MPI in one or two ways.
  void add(const bench_case& what, const std::vector<contender>& all, bool prints) {
    double best = median(all[1].us);
    for (std::size_t i = 3; i < all.size(); ++i) best = std::min(best, median(all[i].us));
    const double ratio = median(all[0].us) / best, again = median(all[2].us) / median(all[1].us);
    ++m_cases;
    m_kept += ratio <= tolerance ? 1 : 0;
    m_noisy += again > tolerance || again < 1 / tolerance ? 1 : 0;
    m_worst = std::max(m_worst, ratio);
    if (prints)
      std::printf("%-15s %10llu | %8s | %9.2f %9.2f %9.2f %9.2f | %7.3f %7.3f\n", what.name,
                  static_cast<unsigned long long>(what.bytes), all[0].backend.c_str(), median(all[0].us),
                  median(all[1].us), median(all[3].us), all.size() > 4 ? median(all[4].us) : 0.0, ratio, again);
  }
  void print() const {
    std::printf(
        "threshold: %d of %d cases at most %g times the better of NCCL and MPI, worst %.3f; NCCL beside itself "
        "left that band in %d\n",
        m_kept, m_cases, tolerance, m_worst, m_noisy);
  }

 private:
  int m_cases = 0, m_kept = 0, m_noisy = 0;
  double m_worst = 0;
};

void judge(contest& machine, const settings& wanted, nlohmann::json& records) {
  const isthmus_communicator tuned = machine.make("");
  const bool prints = machine.rank() == 0;
  verdict found;
  if (prints)
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
      found.add(what, all, prints);
      if (wrong != 0) throw std::runtime_error(std::string(what.name) + " gave wrong results");
    }
  if (prints) found.print();
  isthmus_communicator_destroy(tuned);
}

void run(const settings& wanted) {
  contest machine(wanted.sizes.back(), wanted.samples);
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
  if (machine.rank() == 0)
    bench::write_records(wanted.out, wanted.command,
                         {{"isthmus", isthmus_version()},
                          {"nccl", machine.nccl_version()},
                          {"mpi", isthmus::mpi::detail::library()}},
                         std::move(records));
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
  wanted.command = bench::command_of(argc, argv);
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
