// Copies by the devices' DMA engines against NCCL's kernels and NCCL's own copy-engine mode, in one process and
// one run: what a call takes, issued call by call and in a captured graph, and how much 8192^3 bfloat16 matrix
// products beside it slow down. The order of providers rotates; a sample is the maximum over ranks, a figure
// the median over samples. Clocks drift by more than what the products lose, so each of them is compared with
// those without anything beside them just before and just after.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "copy_engine_timer.hpp"
#include "harness/command.hpp"
#include "harness/document.hpp"

namespace copy_bench {
namespace {

constexpr std::uint64_t overlap_bytes = 64 << 20;

struct settings {
  int ranks = 0, samples = 11, rounds = 0;
  std::string out, only, command;
  std::vector<std::string> variants;
  std::vector<std::uint64_t> sizes{64 << 10, 256 << 10, 1 << 20,  4 << 20,
                                   16 << 20, 32 << 20,  64 << 20, 256 << 20};

  std::uint64_t largest() const {
    return rounds > 0 ? overlap_bytes : *std::max_element(sizes.begin(), sizes.end());
  }
};

std::vector<algorithm_variant> variants_of(const settings& arguments) {
  std::vector<algorithm_variant> variants;
  for (const std::string& text : arguments.variants) {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos)
      throw std::runtime_error("--variants " + text + ": it must be ALGORITHM:OPTIONS");
    variants.push_back({text.substr(0, colon), text.substr(colon + 1)});
  }
  return variants;
}

void save(const settings& arguments, device_ranks& all, const nlohmann::json& records) {
  bench::write_records(arguments.out, arguments.command,
                       {{"isthmus", isthmus_version()}, {"nccl", std::to_string(all.nccl_version())}}, records);
}

// Returns the exit status.
int run(const settings& arguments) {
  device_ranks all(arguments.ranks, arguments.largest(), variants_of(arguments));
  const timer timer(all);
  nlohmann::json records = nlohmann::json::array();
  bool has_error = false;
  if (arguments.rounds > 0) {
    std::printf("%d ranks, NCCL %d; how much longer 20 matrix products take\n", arguments.ranks,
                all.nccl_version());
    records = measure_with_products(timer,
                                      {{ISTHMUS_ALLGATHER, true, overlap_bytes},
                                       {ISTHMUS_ALLGATHER, false, overlap_bytes},
                                       {ISTHMUS_REDUCE_SCATTER, false, overlap_bytes}},
                                      arguments.rounds);
    save(arguments, all, records);
  } else {
    std::printf("%d ranks, NCCL %d; microseconds call by call and in a graph; * other options\n%-29s",
                arguments.ranks, all.nccl_version(), "collective, bytes");
    for (const call_provider& provider : all.providers()) std::printf(" | %17s", provider.label().c_str());
    std::printf("\n");
    for (const std::uint64_t bytes : arguments.sizes)
      for (const call_shape& shape : {call_shape{ISTHMUS_ALLGATHER, false, bytes}, call_shape{ISTHMUS_ALLGATHER, true, bytes},
                                call_shape{ISTHMUS_ALLTOALL, false, bytes}, call_shape{ISTHMUS_BROADCAST, false, bytes},
                                call_shape{ISTHMUS_REDUCE_SCATTER, false, bytes}}) {
        if (!arguments.only.empty() && arguments.only != isthmus_collective_name(shape.collective)) continue;
        const nlohmann::json results = measure_alone(timer, shape, arguments.samples, has_error);
        records.insert(records.end(), results.begin(), results.end());
        save(arguments, all, records);  // whoever stops this program has what was measured
      }
  }
  std::fflush(stdout);
  std::_Exit(has_error ? 1 : 0);  // the communicators go with the process
}

}  // namespace
}  // namespace copy_bench

int main(int argc, char** argv) try {
  CLI::App app{"Isthmus' copy engines against NCCL"};
  copy_bench::settings arguments;
  app.add_option("--ranks", arguments.ranks, "ranks, one a device (0: all devices)");
  app.add_option("--samples", arguments.samples, "samples of each figure")->check(CLI::Range(3, 1000));
  app.add_option("--sizes", arguments.sizes, "bytes");
  app.add_option("--only", arguments.only, "a collective; default: all of them");
  app.add_option("--variants", arguments.variants, "also ALGORITHM:OPTIONS, such as \"push:wait_all_bytes = 0\"");
  app.add_option("--beside-products", arguments.rounds, "so many samples beside matrix products, instead of alone")
      ->check(CLI::Range(1, 1000));
  app.add_option("--out", arguments.out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  arguments.command = bench::command_of(argc, argv);
  if (arguments.ranks == 0 && cudaGetDeviceCount(&arguments.ranks) != cudaSuccess) arguments.ranks = 0;
  if (arguments.ranks < 2) return std::puts("SKIPPED: fewer than two CUDA devices"), 77;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return copy_bench::run(arguments);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "failed: %s\n", failure.what());
  return 1;
}
