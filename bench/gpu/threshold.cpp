// The threshold between MPI and NCCL of the paper, determined and verified on devices. One rank per
// process, under mpiexec.
//
// First it times each collective and size over MPI (the mpi backend of Isthmus) and over NCCL. It writes the
// sizes below which MPI was faster as a profile for selection (ISTHMUS_PROFILE). Then it runs with that
// profile, interleaved with what a program without Isthmus has: NCCL, MPI with copies to pinned memory, and MPI
// on the device buffers if the library supports them. A time is from the call until the stream is idle; a
// sample is the median of several calls in a row on the slowest rank; a result is the median over samples.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>

#include "gpu_bench.hpp"
#include "harness/mpi_library.hpp"
#include "threshold_comparison.hpp"

namespace gpu_bench {
namespace {

using bench::median;

constexpr double tolerance = 1.03;  // maximum relative cost of the tuned threshold

nlohmann::json record(int ranks, const device_call& entry, std::uint64_t wrong) {
  const bench_case& test_case = entry.test_case;
  nlohmann::json line =
      bench::record_of(test_case.operation(ranks), entry,
                       bench::bandwidth_of(test_case.collective, test_case.bytes, ranks, median(entry.us)));
  line["op"] = "sum";
  line["wrong"] = wrong;
  return line;
}

// For each collective the size from which NCCL was never slower. 0: always NCCL; no value: never.
using thresholds = std::map<std::string, std::optional<std::uint64_t>>;

std::string profile_text(const thresholds& tuned_thresholds, int ranks) {
  std::string text =
      "# Written by gpu_bench threshold: below these sizes MPI was faster than NCCL on device buffers.\n";
  for (const auto& [collective, size] : tuned_thresholds) {
    if (size && *size == 0) continue;
    text += "\n[[rule]]\ncollective = [\"" + collective + "\"]\nplatform = [\"cuda\"]\nranks = \"" +
            std::to_string(ranks) + "\"\n";
    if (size) text += "bytes = \"0.." + std::to_string(*size) + "\"\n";
    text += "use = \"mpi\"\n";
  }
  return text;
}

struct settings : common_settings {
  std::string profile = "threshold-profile.toml";
};

std::vector<bench_case> cases_of(std::uint64_t bytes) {
  std::vector<bench_case> all = cases(bytes);
  std::erase_if(all, [](const bench_case& test_case) {
    switch (test_case.collective) {
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

thresholds tune(threshold_comparison& comparison, const settings& arguments, nlohmann::json& records) {
  const isthmus_communicator mpi_communicator = comparison.create_communicator("platform=cuda use=mpi");
  const isthmus_communicator nccl_communicator = comparison.create_communicator("platform=cuda use=nccl");
  thresholds tuned_thresholds;
  for (auto bytes = arguments.sizes.rbegin(); bytes != arguments.sizes.rend(); ++bytes)
    for (const bench_case& test_case : cases_of(*bytes)) {
      std::vector<device_call> pair{comparison.isthmus_contender(test_case, mpi_communicator),
                                    comparison.isthmus_contender(test_case, nccl_communicator)};
      comparison.time(pair);
      for (const device_call& entry : pair)
        records.push_back(record(comparison.size(), entry, comparison.wrong(entry)));
      const bool mpi_is_faster = median(pair[0].us) < median(pair[1].us);
      // Goes down from the largest size while NCCL stays ahead.
      auto& size = tuned_thresholds.try_emplace(test_case.name(), std::nullopt).first->second;
      const bool is_ahead = bytes == arguments.sizes.rbegin() || (size && *size == *std::prev(bytes));
      if (!mpi_is_faster && is_ahead) size = bytes + 1 == arguments.sizes.rend() ? 0 : *bytes;
    }
  isthmus_communicator_destroy(mpi_communicator);
  isthmus_communicator_destroy(nccl_communicator);
  return tuned_thresholds;
}

// Compares the tuned threshold with the better of NCCL and MPI, over all cases.
class threshold_summary {
 public:
  // `all`: Isthmus, NCCL, NCCL again, and one or two variants of MPI.
  void add(const bench_case& test_case, const std::vector<device_call>& all, bool is_verbose) {
    double best = median(all[1].us);
    for (std::size_t i = 3; i < all.size(); ++i) best = std::min(best, median(all[i].us));
    const double ratio = median(all[0].us) / best, repeated_ratio = median(all[2].us) / median(all[1].us);
    ++m_cases;
    m_within_tolerance += ratio <= tolerance ? 1 : 0;
    m_outside_noise += repeated_ratio > tolerance || repeated_ratio < 1 / tolerance ? 1 : 0;
    m_worst = std::max(m_worst, ratio);
    if (is_verbose)
      std::printf("%-15s %10llu | %8s | %9.2f %9.2f %9.2f %9.2f | %7.3f %7.3f\n", test_case.name().c_str(),
                  static_cast<unsigned long long>(test_case.bytes), all[0].backend.c_str(), median(all[0].us),
                  median(all[1].us), median(all[3].us), all.size() > 4 ? median(all[4].us) : 0.0, ratio,
                  repeated_ratio);
  }
  void print() const {
    std::printf(
        "threshold: %d of %d cases at most %g times the better of NCCL and MPI, worst %.3f; NCCL against "
        "itself "
        "exceeded that tolerance in %d\n",
        m_within_tolerance, m_cases, tolerance, m_worst, m_outside_noise);
  }

 private:
  int m_cases = 0, m_within_tolerance = 0, m_outside_noise = 0;
  double m_worst = 0;
};

void verify_threshold(threshold_comparison& comparison, const settings& arguments, nlohmann::json& records) {
  const isthmus_communicator tuned = comparison.create_communicator("");
  const bool is_verbose = comparison.rank() == 0;
  threshold_summary summary;
  if (is_verbose)
    std::printf("%-15s %10s | %8s | %9s %9s %9s %9s | %7s %7s\n", "collective", "bytes", "taken", "isthmus",
                "nccl", "mpi", "mpi gpu", "ratio", "a/a");
  for (const std::uint64_t bytes : arguments.sizes)
    for (const bench_case& test_case : cases_of(bytes)) {
      std::vector<device_call> all{comparison.isthmus_contender(test_case, tuned),
                                   comparison.nccl_contender(test_case), comparison.nccl_contender(test_case),
                                   comparison.mpi_contender(test_case, false)};
      if (bench::mpi_supports_device_memory()) all.push_back(comparison.mpi_contender(test_case, true));
      comparison.time(all);
      const std::uint64_t wrong = comparison.wrong(all[0]);
      for (std::size_t i = 0; i < all.size(); ++i)
        if (i != 2) records.push_back(record(comparison.size(), all[i], i == 0 ? wrong : 0));
      summary.add(test_case, all, is_verbose);
      if (wrong != 0) throw std::runtime_error(test_case.name() + " returned wrong results");
    }
  if (is_verbose) summary.print();
  isthmus_communicator_destroy(tuned);
}

int compare(const settings& arguments) {
  threshold_comparison comparison(arguments.sizes.back(), arguments.samples);
  nlohmann::json records = nlohmann::json::array();
  setenv("ISTHMUS_PROFILE", "none", 1);
  const thresholds tuned_thresholds = tune(comparison, arguments, records);
  if (comparison.rank() == 0) {
    std::ofstream(arguments.profile) << profile_text(tuned_thresholds, comparison.size());
    for (const auto& [collective, size] : tuned_thresholds)
      std::printf("%-15s over MPI below %s\n", collective.c_str(),
                  size ? (std::to_string(*size) + " B").c_str() : "every size");
  }
  bench::check_mpi(MPI_Barrier(MPI_COMM_WORLD));
  setenv("ISTHMUS_PROFILE", arguments.profile.c_str(), 1);
  verify_threshold(comparison, arguments, records);
  if (comparison.rank() != 0) return 0;
  return arguments.write(records,
                         {{"nccl", comparison.nccl_version()}, {"mpi", isthmus::mpi::detail::library()}});
}

// One process per rank. On failure it ends the job, because the other ranks must not wait.
int run(const settings& arguments) {
  int level = 0, ranks = 0, devices = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (level < MPI_THREAD_MULTIPLE || ranks < 2 || devices < ranks) {
    std::puts("SKIPPED: needs MPI_THREAD_MULTIPLE, at least two ranks, and a device for each");
    MPI_Finalize();
    return exit_skipped;
  }
  try {
    const int status = compare(arguments);
    std::fflush(stdout);
    MPI_Finalize();
    return status;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "gpu_bench: %s\n", failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 1;
}

}  // namespace

void add_threshold(CLI::App& app, program& result) {
  const auto arguments = std::make_shared<settings>();
  arguments->samples = 15;
  arguments->sizes = {128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20};
  result
      .add(app, "threshold", "the threshold between MPI and NCCL; one rank per process, under mpiexec",
           arguments, "--samples", "--bytes", [arguments] { return run(*arguments); })
      ->add_option("--profile", arguments->profile, "profile to write and to verify");
}

}  // namespace gpu_bench
