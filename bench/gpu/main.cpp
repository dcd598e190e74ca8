// Isthmus against NCCL, MPI and the CUDA runtime on the devices of one machine: one subcommand for each topic of
// scripts/gpu_topics.py. Methods are interleaved in one process and one run. A sample is the maximum over ranks, a
// result the median over samples. The parts that the subcommands share are in bench/harness.
#include <cuda_runtime_api.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "gpu_bench.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"

namespace gpu_bench {

std::uint64_t common_settings::largest() const { return *std::max_element(sizes.begin(), sizes.end()); }

int common_settings::find_ranks(int minimum) const {
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) found = 0;
  if (ranks > found)
    throw std::runtime_error("--ranks " + std::to_string(ranks) + ": this machine has " +
                             std::to_string(found) + " devices; use at most one rank per device");
  const int used = ranks != 0 ? ranks : found;
  if (used >= minimum) return used;
  std::printf("SKIPPED: needs %d CUDA device%s\n", minimum, minimum > 1 ? "s" : "");
  return 0;
}

int common_settings::write(const nlohmann::json& records, const nlohmann::json& others) const {
  nlohmann::json versions{{"isthmus", isthmus_version()}};
  versions.update(others);
  bench::write_records(out, command, std::move(versions), records);
  const bool has_wrong = std::any_of(records.begin(), records.end(),
                                     [](const auto& record) { return record.value("wrong", 0) != 0; });
  return has_wrong ? 1 : 0;
}

void common_settings::add_peers(CLI::App& subcommand) {
  subcommand.add_option("--peer", peers, "NAME=FILE: also measure this plug-in (bench/harness/gpu/peer.h)");
}

CLI::App* program::add(CLI::App& app, const std::string& name, const std::string& description,
                       const std::shared_ptr<common_settings>& settings, const std::string& samples,
                       const std::string& sizes, std::function<int()> run_subcommand) {
  CLI::App* const subcommand = app.add_subcommand(name, description);
  subcommand->add_option(samples, settings->samples, "samples per result")
      ->check(CLI::Range(3, 10000))
      ->capture_default_str();
  if (!sizes.empty()) subcommand->add_option(sizes, settings->sizes, "sizes in bytes")->capture_default_str();
  subcommand->add_option("--out", settings->out, "JSON file with the records");
  subcommand->callback([this, settings, run_subcommand] {
    settings->command = command;
    run = run_subcommand;
  });
  return subcommand;
}

}  // namespace gpu_bench

int main(int argc, char** argv) {
  CLI::App app{"Compares Isthmus on CUDA devices with NCCL, MPI and the CUDA runtime"};
  app.require_subcommand(1);
  gpu_bench::program program{bench::command_of(argc, argv), {}};
  gpu_bench::add_nccl(app, program);
  gpu_bench::add_collectives(app, program);
  gpu_bench::add_p2p(app, program);
  gpu_bench::add_fused_norm(app, program);
  gpu_bench::add_copy_engine(app, program);
  gpu_bench::add_memory(app, program);
#ifdef GPU_BENCH_MPI
  gpu_bench::add_threshold(app, program);
#endif
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const int status = program.run();
    std::fflush(nullptr);
    std::_Exit(status);  // the measurement is complete; the end of the process frees the communicators
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "gpu_bench: %s\n", failure.what());
    return 1;
  }
}
