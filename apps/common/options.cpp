#include "options.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "bench/harness/command.hpp"

namespace apps {

namespace {

// "256" or "512,512,256".
std::array<std::uint64_t, 3> parse_size(const std::string& text) {
  const std::vector<std::string> parts = CLI::detail::split(text, ',');
  std::array<std::uint64_t, 3> size{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string& part = parts[parts.size() == 1 ? 0 : i % parts.size()];
    const bool is_number =
        !part.empty() && part.size() < 8 && part.find_first_not_of("0123456789") == std::string::npos;
    size.at(i) = is_number ? std::stoull(part) : 0;
  }
  if ((parts.size() != 1 && parts.size() != 3) || size[0] * size[1] * size[2] == 0)
    throw CLI::ValidationError("--size", "'" + text + "' is not a size; use N or X,Y,Z, each at least 1");
  return size;
}

const char* default_size(const std::string& application) {
  if (application == "comd") return "16";
  return application.starts_with("prk_") ? "1024" : "128";
}

// Both files are checked before hours of measurement instead of after.
std::string check_json(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  const bool writable = access(folder.empty() ? "." : folder.c_str(), W_OK) == 0;
  return writable ? "" : file + ": cannot write the file; check that the folder exists and is writable";
}
std::string check_plot(const std::string& page) {
  if (std::filesystem::exists(page)) return page + ": the file exists; use another name or remove it";
  if (std::string unwritable = check_json(page); !unwritable.empty()) return unwritable;
  const char* const folders = std::getenv("PATH");
  for (const std::string& folder : CLI::detail::split(folders == nullptr ? "" : folders, ':'))
    if (access((folder + "/isthmus").c_str(), X_OK) == 0) return "";
  return "the command isthmus is not in PATH; install it with: pip install isthmus";
}

struct raw {
  std::string size = "";
  std::vector<std::string> transports = {"mpi", "isthmus", "isthmus-usm"};
};

void add_common(CLI::App& app, program_options& options, raw& text, const char* size_help) {
  app.add_option("--transport", text.transports, "one or several, compared in alternation")
      ->delimiter(',')
      ->check(CLI::IsMember(transport_names()))
      ->capture_default_str();
  app.add_option("--size", text.size, size_help)->capture_default_str();
  app.add_option("--scaling", options.scaling,
                 "strong: --size is the whole problem; weak: --size is the share of each rank")
      ->check(CLI::IsMember({"strong", "weak"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "steps per repetition")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "repetitions of each transport; 0: only verify")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  app.add_option("--json", options.json, "write the records to this file")->check(check_json);
  app.add_option(
         "--plot", options.plot,
         "write an HTML page with plots, like isthmus report; records go to --json, or next to the page")
      ->check(check_plot);
  app.add_option("--config", options.transport.config, "Isthmus configuration file");
  app.add_option("--timeout", options.transport.timeout_s, "seconds to wait for other ranks")
      ->capture_default_str();
}

void add_research_kernels(CLI::App& app, program_options& options, raw& text) {
  CLI::App* const prk_stencil =
      app.add_subcommand("prk_stencil", "the Parallel Research Kernels' star stencil");
  prk_stencil->add_option("--radius", options.radius, "radius of the star")
      ->check(CLI::Range(1, 9))
      ->capture_default_str();
  add_common(*prk_stencil, options, text, "order of the square of cells (default 1024)");
  add_common(*app.add_subcommand("prk_transpose", "the Parallel Research Kernels' matrix transpose"), options,
             text, "order of the matrices (default 1024)");
}

}  // namespace

program_options parse(int argc, char** argv) {
  program_options options;
  raw text;
  CLI::App app{
      "The applications of the SuCL paper: the same physics over plain MPI (the paper's Listing 1) and over "
      "Isthmus. Every run verifies its results. Start it with mpiexec."};
  app.require_subcommand(1);
  CLI::App* const comd = app.add_subcommand("comd", "molecular dynamics of a copper crystal");
  comd->add_option("--potential", options.potential, "lj (Lennard-Jones) or eam (embedded atoms)")
      ->check(CLI::IsMember({"lj", "eam"}))
      ->capture_default_str();
  add_common(*comd, options, text, "N or X,Y,Z unit cells of 4 atoms (default 16)");
  CLI::App* const halo = app.add_subcommand("halo", "a 3-D stencil with neighbor exchange");
  halo->add_option("--neighbors", options.neighbors, "6 or 26")
      ->check(CLI::IsMember({6, 26}))
      ->capture_default_str();
  halo->add_option("--exchange", options.exchange, "group (of sends and recvs) or alltoallv")
      ->check(CLI::IsMember({"group", "alltoallv"}))
      ->capture_default_str();
  halo->add_flag("!--no-overlap", options.overlap, "compute after the exchange instead of during it");
  add_common(*halo, options, text, "N or X,Y,Z cells (default 128)");
  CLI::App* const transpose =
      app.add_subcommand("transpose", "transpose of a distributed 3-D array, forward and back");
  transpose->add_option("--decomposition", options.decomposition, "1: slabs, 2: pencils")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  add_common(*transpose, options, text, "N or X,Y,Z elements (default 128)");
  add_research_kernels(app, options, text);
  try {
    app.parse(argc, argv);
    if (!options.plot.empty() && options.json.empty())
      options.json = std::filesystem::path(options.plot).replace_extension(".json");
    options.application = app.get_subcommands().front()->get_name();
    if (options.steps == 0) options.steps = 10;
    options.size = parse_size(!text.size.empty() ? text.size : default_size(options.application));
    if (options.application.starts_with("prk_") && options.size[1] == options.size[2])
      options.size[2] = 1;  // square problems
    for (const std::string& name : text.transports) {
      const auto& names = transport_names();
      options.transports.push_back(
          static_cast<transport_kind>(std::find(names.begin(), names.end(), name) - names.begin()));
    }
  } catch (const CLI::Error& error) {
    std::exit(app.exit(error));
  }
  options.command = bench::command_of(argc, argv);
  return options;
}

// Each prime factor of the number of ranks, largest first, multiplies the shortest side; ties go to the last
// one, because memory is contiguous in the first.
void scale_to_ranks(program_options& options, int ranks) {
  if (options.scaling != "weak") return;
  std::vector<std::uint64_t> factors;
  for (int factor = 2; factor <= ranks; ++factor)
    for (; ranks % factor == 0; ranks /= factor) factors.push_back(static_cast<std::uint64_t>(factor));
  for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor)
    *std::min_element(options.size.rbegin(), options.size.rend()) *= *factor;
}

}  // namespace apps
