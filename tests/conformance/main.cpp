// The conformance suite: THE TABLE on every backend. docs/conformance.md says how to read and use it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

#include "suite.hpp"

namespace {

// Puts this process on its node: "3+1" says that ranks 0 to 2 are on one and rank 3 on another.
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
  app.add_option("--topology", topology, "where ranks live")
      ->check(CLI::IsMember({"threads", "group", "processes", "mixed", "mpi"}))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "number of ranks (mpi: as started)")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--nodes", nodes, "how many ranks are on each node, as 3+1 (processes, mpi)");
  app.add_option("--engine", options.engine,
                 "only this backend[:algorithm], those that begin with NAME*, or default");
  app.add_option("--except", options.except, "leave out this backend");
  app.add_option("--seed", options.plan.seed, "of data and samples")->capture_default_str();
  app.add_option("--samples", options.plan.samples, "large cases for each engine")->capture_default_str();
  app.add_option("--batches", options.plan.batches, "of calls back to back and grouped, for each engine")
      ->capture_default_str();
  app.add_option("--thinning", options.plan.thinning, "every how manyth case of the product")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--covering", options.plan.covering,
               "of the product one form and count for each type and operation, in turns");
  app.add_option("--timeout", options.timeout_s, "of every wait, in seconds")->capture_default_str();
  app.add_option("--case", only, "one case, as a failure prints it");
  CLI11_PARSE(app, argc, argv);
  // Forced algorithms that can't do a call are expected here; the log would warn about each.
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
