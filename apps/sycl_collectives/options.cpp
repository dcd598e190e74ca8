#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "shape.hpp"

namespace sycl_collectives {

namespace {

// "128", "64K", "128M" (powers of 1024).
std::uint64_t parse_bytes(const std::string& text) {
  std::size_t used = 0;
  std::uint64_t value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (used == 0 || shift < 0 || value == 0 || value > (std::uint64_t{1} << 40) >> shift) {
    throw CLI::ValidationError("--sizes", "'" + text + "' is no size; write bytes as 128, 64K or 128M");
  }
  return value << shift;
}

// "128:128M" doubles from the first to the last, "128:128M:8" multiplies by 8; "128,64K" is a list.
std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  if (text.find(':') == std::string::npos) {
    for (const std::string& item : CLI::detail::split(text, ',')) sizes.push_back(parse_bytes(item));
    return sizes;
  }
  const std::vector<std::string> parts = CLI::detail::split(text, ':');
  const std::uint64_t factor = parts.size() > 2 ? parse_bytes(parts[2]) : 2;
  if (parts.size() > 3 || factor < 2)
    throw CLI::ValidationError("--sizes", "write FIRST:LAST or FIRST:LAST:FACTOR");
  for (std::uint64_t size = parse_bytes(parts[0]); size <= parse_bytes(parts[1]); size *= factor)
    sizes.push_back(size);
  if (sizes.empty()) throw CLI::ValidationError("--sizes", "'" + text + "' holds no size");
  return sizes;
}

}  // namespace

options parse(int argc, char** argv) {
  options asked;
  std::string sizes = "128:128M", progress = "text";
  bool quick = false;
  std::vector<std::string> names;
  for (const collective_case& one : all_cases()) names.emplace_back(one.name);

  CLI::App app{
      "Runs, verifies and times every collective of Isthmus on SYCL buffers and USM, beside plain MPI. "
      "Start it with mpiexec."};
  app.add_option("--sizes", sizes, "bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
      ->capture_default_str();
  app.add_option("--collectives", asked.collectives, "which, by name (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--out", asked.out, "write the records to this JSON file");
  app.add_option("--config", asked.config, "Isthmus configuration file");
  app.add_option("--progress", progress, "text (a table) or json (one object a line)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--budget", asked.budget_s, "seconds measured per collective and size")->capture_default_str();
  app.add_option("--timeout", asked.timeout_s, "seconds to wait for other ranks")->capture_default_str();
  app.add_flag("--quick", quick, "few sizes up to 1 MiB, few samples");
  try {
    app.parse(argc, argv);
    if (quick) {
      asked.budget_s = 0.005;
      asked.min_samples = 3;
      if (app.count("--sizes") == 0) sizes = "128:1M:8";
    }
    asked.sizes = parse_sizes(sizes);
  } catch (const CLI::Error& error) {
    std::exit(app.exit(error));
  }
  asked.progress_json = progress == "json";
  asked.command = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) asked.command += " " + std::string(argv[i]);
  return asked;
}

}  // namespace sycl_collectives
