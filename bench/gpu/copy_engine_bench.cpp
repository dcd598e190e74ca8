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

constexpr std::uint64_t beside_bytes = 64 << 20;

struct settings {
  int ranks = 0, samples = 11, rounds = 0;
  std::string out, only, command;
  std::vector<std::string> variants;
  std::vector<std::uint64_t> sizes{64 << 10, 256 << 10, 1 << 20,  4 << 20,
                                   16 << 20, 32 << 20,  64 << 20, 256 << 20};

  std::uint64_t largest() const {
    return rounds > 0 ? beside_bytes : *std::max_element(sizes.begin(), sizes.end());
  }
};

std::vector<variant> variants_of(const settings& wanted) {
  std::vector<variant> found;
  for (const std::string& text : wanted.variants) {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos)
      throw std::runtime_error("--variants " + text + ": it must be ALGORITHM:OPTIONS");
    found.push_back({text.substr(0, colon), text.substr(colon + 1)});
  }
  return found;
}

void save(const settings& wanted, world& all, const nlohmann::json& records) {
  bench::write_records(wanted.out, wanted.command,
                       {{"isthmus", isthmus_version()}, {"nccl", std::to_string(all.nccl_version())}}, records);
}

// Returns the exit status.
int run(const settings& wanted) {
  world all(wanted.ranks, wanted.largest(), variants_of(wanted));
  const timer timer(all);
  nlohmann::json records = nlohmann::json::array();
  bool broken = false;
  if (wanted.rounds > 0) {
    std::printf("%d ranks, NCCL %d; how much longer 20 matrix products take\n", wanted.ranks,
                all.nccl_version());
    records = measure_beside_products(timer,
                                      {{ISTHMUS_ALLGATHER, true, beside_bytes},
                                       {ISTHMUS_ALLGATHER, false, beside_bytes},
                                       {ISTHMUS_REDUCE_SCATTER, false, beside_bytes}},
                                      wanted.rounds);
    save(wanted, all, records);
  } else {
    std::printf("%d ranks, NCCL %d; microseconds call by call and in a graph; * other options\n%-29s",
                wanted.ranks, all.nccl_version(), "collective, bytes");
    for (const provider& by : all.providers()) std::printf(" | %17s", by.label().c_str());
    std::printf("\n");
    for (const std::uint64_t bytes : wanted.sizes)
      for (const shape& what : {shape{ISTHMUS_ALLGATHER, false, bytes}, shape{ISTHMUS_ALLGATHER, true, bytes},
                                shape{ISTHMUS_ALLTOALL, false, bytes}, shape{ISTHMUS_BROADCAST, false, bytes},
                                shape{ISTHMUS_REDUCE_SCATTER, false, bytes}}) {
        if (!wanted.only.empty() && wanted.only != isthmus_collective_name(what.collective)) continue;
        const nlohmann::json made = measure_alone(timer, what, wanted.samples, broken);
        records.insert(records.end(), made.begin(), made.end());
        save(wanted, all, records);  // whoever stops this program has what was measured
      }
  }
  std::fflush(stdout);
  std::_Exit(broken ? 1 : 0);  // the communicators go with the process
}

}  // namespace
}  // namespace copy_bench

int main(int argc, char** argv) try {
  CLI::App app{"Isthmus' copy engines against NCCL"};
  copy_bench::settings wanted;
  app.add_option("--ranks", wanted.ranks, "ranks, one a device (0: all devices)");
  app.add_option("--samples", wanted.samples, "samples of each figure")->check(CLI::Range(3, 1000));
  app.add_option("--sizes", wanted.sizes, "bytes");
  app.add_option("--only", wanted.only, "a collective; default: all of them");
  app.add_option("--variants", wanted.variants, "also ALGORITHM:OPTIONS, such as \"push:wait_all_bytes = 0\"");
  app.add_option("--beside-products", wanted.rounds, "so many samples beside matrix products, instead of alone")
      ->check(CLI::Range(1, 1000));
  app.add_option("--out", wanted.out, "JSON file with the records");
  CLI11_PARSE(app, argc, argv);
  wanted.command = bench::command_of(argc, argv);
  if (wanted.ranks == 0 && cudaGetDeviceCount(&wanted.ranks) != cudaSuccess) wanted.ranks = 0;
  if (wanted.ranks < 2) return std::puts("SKIPPED: fewer than two CUDA devices"), 77;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return copy_bench::run(wanted);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "failed: %s\n", failure.what());
  return 1;
}
