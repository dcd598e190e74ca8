// The conformance suite: every row of the collective table on every backend. docs/internals/testing.md describes it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

#include "suite.hpp"

namespace {

// Assigns this process to a node. "3+1": ranks 0 to 2 are on one node, rank 3 is on another.
void enter_node(const std::string& nodes, int rank) {
  std::istringstream sizes(nodes);
  int ranks = 0, node = 0;
  for (std::string size; std::getline(sizes, size, '+'); ++node)
    if ((ranks += std::stoi(size)) > rank) break;
  setenv("ISTHMUS_NODE", std::to_string(node).c_str(), 1);
}

int run_topology(const std::string& topology, int ranks, const std::string& nodes,
                 const conformance::suite_options& options) {
  const auto run = [&](conformance::rank_runner& runner) {
    if (!nodes.empty()) enter_node(nodes, runner.rank());
    return conformance::run_suite(runner, options);
  };
  if (topology == "threads") return conformance::run_in_threads(ranks, run);
  if (topology == "group") return conformance::run_in_group(ranks, run);
  if (topology == "processes") return conformance::run_in_processes(ranks, 1, run);
  if (topology == "mixed") return conformance::run_in_processes(ranks, 2, run);
  return conformance::run_in_mpi(run);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Isthmus conformance suite"};
  std::string topology = "threads";
  std::string only, nodes;
  int ranks = 4;
  conformance::suite_options options;
  app.add_option("--topology", topology, "threads, group, processes, mixed or mpi: how ranks run")
      ->check(CLI::IsMember({"threads", "group", "processes", "mixed", "mpi"}))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "number of ranks (mpi: set by mpiexec)")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--nodes", nodes, "ranks per node, for example 3+1 (processes, mpi)");
  app.add_option("--engine", options.engine,
                 "run only this backend[:algorithm], engines that match NAME*, or default");
  app.add_option("--except", options.except, "skip this backend");
  app.add_option("--seed", options.plan.seed, "seed of data and samples")->capture_default_str();
  app.add_option("--samples", options.plan.samples, "number of large cases per engine")->capture_default_str();
  app.add_option("--batches", options.plan.batches, "number of back-to-back and grouped batches per engine")
      ->capture_default_str();
  app.add_option("--thinning", options.plan.sampling_stride, "run one of N cases of the product")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--covering", options.plan.is_covering,
               "run one form and count of the product per type and operation, in rotation");
  app.add_option("--timeout", options.timeout_s, "timeout of every wait, in seconds")->capture_default_str();
  app.add_option("--case", only, "run one case, as printed by a failure");
  CLI11_PARSE(app, argc, argv);
  // Forced algorithms may not support a call. That is expected here, and the log would warn about each.
  setenv("ISTHMUS_LOG", "error", 0);
  try {
    if (!nodes.empty() && topology != "processes" && topology != "mpi")
      throw std::runtime_error("--nodes needs a process for each rank: --topology processes or mpi");
    if (!only.empty()) options.only = conformance::parse(only);
    const int failures = run_topology(topology, ranks, nodes, options);
    if (failures > 0) fmt::print("conformance: {} failed (seed {})\n", failures, options.plan.seed);
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "conformance: {}\n", failure.what());
    return 2;
  }
}
