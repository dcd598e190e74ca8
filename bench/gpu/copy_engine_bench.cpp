// Copies by the DMA engines of the devices against NCCL kernels and the copy-engine mode of NCCL, in one
// process and one run. Measures the time of a call, issued directly and in a captured graph, and the slowdown
// of concurrent 8192^3 bfloat16 matrix products. The order of providers rotates. A sample is the maximum over
// ranks, a result the median over samples. Clock drift exceeds the slowdown of the products, so each product is
// compared with idle runs just before and after it.
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
      throw std::runtime_error("--variants " + text + ": must be ALGORITHM:OPTIONS");
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
    std::printf("%d ranks, NCCL %d; slowdown of 20 matrix products\n", arguments.ranks, all.nccl_version());
    records = measure_with_products(timer,
                                    {{ISTHMUS_ALLGATHER, true, overlap_bytes},
                                     {ISTHMUS_ALLGATHER, false, overlap_bytes},
                                     {ISTHMUS_REDUCE_SCATTER, false, overlap_bytes}},
                                    arguments.rounds);
    save(arguments, all, records);
  } else {
    std::printf(
        "%d ranks, NCCL %d; microseconds per call, issued directly and in a graph; * non-default "
        "options\n%-29s",
        arguments.ranks, all.nccl_version(), "collective, bytes");
    for (const call_provider& provider : all.providers()) std::printf(" | %17s", provider.label().c_str());
    std::printf("\n");
    for (const std::uint64_t bytes : arguments.sizes)
      for (const call_shape& shape :
           {call_shape{ISTHMUS_ALLGATHER, false, bytes}, call_shape{ISTHMUS_ALLGATHER, true, bytes},
            call_shape{ISTHMUS_ALLTOALL, false, bytes}, call_shape{ISTHMUS_BROADCAST, false, bytes},
            call_shape{ISTHMUS_REDUCE_SCATTER, false, bytes}}) {
        if (!arguments.only.empty() && arguments.only != isthmus_collective_name(shape.collective)) continue;
        const nlohmann::json results = measure_alone(timer, shape, arguments.samples, has_error);
        records.insert(records.end(), results.begin(), results.end());
        save(arguments, all, records);  // a stopped program keeps what it measured so far
      }
  }
  std::fflush(stdout);
  std::_Exit(has_error ? 1 : 0);  // the end of the process frees the communicators
}

}  // namespace
}  // namespace copy_bench

int main(int argc, char** argv) try {
  CLI::App app{"Compares the copy engines of Isthmus with NCCL"};
  copy_bench::settings arguments;
  app.add_option("--ranks", arguments.ranks, "ranks, one per device (0: all devices)");
  app.add_option("--samples", arguments.samples, "samples per result")->check(CLI::Range(3, 1000));
  app.add_option("--sizes", arguments.sizes, "bytes");
  app.add_option("--only", arguments.only, "one collective (default: all)");
  app.add_option("--variants", arguments.variants,
                 "additional ALGORITHM:OPTIONS, such as \"push:wait_all_bytes = 0\"");
  app.add_option("--with-products", arguments.rounds,
                 "measure with concurrent matrix products, this many samples")
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
