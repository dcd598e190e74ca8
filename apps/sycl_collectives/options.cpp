#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "bench/harness/command.hpp"
#include "shape.hpp"

namespace sycl_collectives {

program_options parse(int argc, char** argv) {
  program_options options;
  std::string sizes = "128:128M", progress = "text";
  bool quick = false;
  std::vector<std::string> names;
  for (const collective_entry& entry : all_entries()) names.emplace_back(entry.name);

  CLI::App app{
      "Runs, verifies and times every collective of Isthmus on SYCL buffers and USM, and compares it with "
      "plain MPI. "
      "Start it with mpiexec."};
  app.add_option("--sizes", sizes, "bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
      ->capture_default_str();
  app.add_option("--collectives", options.collectives, "collectives to run, by name (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--out", options.out, "write the records to this JSON file");
  app.add_flag("--thread-multiple", options.thread_multiple,
               "use MPI_THREAD_MULTIPLE, which mpi needs for device buffers but which makes MPI slower");
  app.add_flag("--host-task", options.host_task,
               "run calls on CPU devices in host tasks, for which the program does not wait");
  app.add_option("--config", options.config, "Isthmus configuration file");
  app.add_option("--progress", progress, "text (a table) or json (one object a line)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--budget", options.budget_s, "seconds measured per collective and size")
      ->capture_default_str();
  app.add_option(
         "--longest-call", options.longest_call_s,
         "skip a plain MPI path at larger sizes of a collective if a call takes longer than this, in seconds")
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_s, "seconds to wait for other ranks")->capture_default_str();
  app.add_flag("--quick", quick, "few sizes up to 1 MiB, few samples");
  try {
    app.parse(argc, argv);
    if (quick) {
      options.budget_s = 0.005;
      options.min_samples = 3;
      if (app.count("--sizes") == 0) sizes = "128:1M:8";
    }
    options.sizes = bench::parse_sizes(sizes);
    if (std::count(options.sizes.begin(), options.sizes.end(), 0) > 0)
      throw CLI::ValidationError("--sizes", "0 bytes cannot be timed; use sizes of at least 1");
  } catch (const CLI::Error& error) {
    std::exit(app.exit(error));
  }
  options.progress_json = progress == "json";
  options.command = bench::command_of(argc, argv);
  return options;
}

}  // namespace sycl_collectives
