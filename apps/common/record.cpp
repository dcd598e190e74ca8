#include "record.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/harness/document.hpp"

namespace apps {

namespace {

const char* mode_of(transport_kind kind) {
  switch (kind) {
    case transport_kind::mpi:
    case transport_kind::isthmus: return "sycl_buffer";
    case transport_kind::isthmus_usm: return "sycl_usm";
    case transport_kind::isthmus_usm_task: return "sycl_usm_task";
  }
  return "";
}

// The speedup over the paper's Listing 1 in the same run; 0 if it did not run.
double speedup(const std::vector<outcome>& all, const outcome& result) {
  for (const outcome& other : all)
    if (other.transport == transport_kind::mpi && !other.samples_us.empty())
      return bench::median(other.samples_us) / bench::median(result.samples_us);
  return 0;
}

double rate_of(const program_options& options, const application_entry& entry, const outcome& result) {
  return entry.rate.second(options) / (1e-6 * bench::median(result.samples_us));
}

nlohmann::json record_of(const program_options& options, const application_entry& entry, int ranks,
                         const std::vector<outcome>& all, const outcome& result) {
  const bool is_mpi = result.transport == transport_kind::mpi;
  nlohmann::json record =
      bench::record_of({entry.name, entry.dtype, result.message_bytes, ranks, is_mpi ? "listing1" : "isthmus",
                        result.backend, mode_of(result.transport)},
                       result.samples_us, {});
  record["size"] = options.size;
  record["scaling"] = options.scaling;
  record["steps"] = options.steps;
  record["samples"] = result.samples_us.size();
  record["wrong"] = result.wrong;
  record["same_bits"] = result.same_bits;
  record["communication_us"] = result.communication_us;
  record["communication_share"] = result.communication_share;
  if (const double faster = speedup(all, result); faster > 0) record["speedup_over_listing1"] = faster;
  for (const auto& [name, value] : entry.settings(options)) record[name] = value;
  if (entry.rate.second) record[entry.rate.first] = rate_of(options, entry, result);
  return record;
}

// Runs isthmus report as a separate program, because the Python package draws plots and pages.
void draw(const program_options& options) {
  std::string words[] = {"isthmus", "report", options.json, "--out", options.plot};
  char* arguments[std::size(words) + 1] = {};
  for (std::size_t i = 0; i < std::size(words); ++i) arguments[i] = words[i].data();
  std::fflush(nullptr);
  pid_t plot_pid = 0;
  int status = 1;
  if (posix_spawnp(&plot_pid, arguments[0], nullptr, nullptr, arguments, environ) != 0 ||
      waitpid(plot_pid, &status, 0) < 0 || status != 0)
    throw std::runtime_error("--plot: isthmus report failed to write " + options.plot +
                             "; the records are in " + options.json);
}

}  // namespace

void report_outcomes(const program_options& options, const application_entry& entry, const sycl::device& device,
                     int ranks, const std::vector<outcome>& outcomes) {
  std::printf("%s %llu x %llu x %llu, %d ranks on %s; kernels: %s\n", entry.name,
              static_cast<unsigned long long>(options.size[0]),
              static_cast<unsigned long long>(options.size[1]),
              static_cast<unsigned long long>(options.size[2]), ranks,
              device.get_info<sycl::info::device::name>().c_str(), launcher::compilation_mode());
  std::printf("%-17s %12s %12s %12s %10s %14s %6s %5s  %s\n", "transport", "min us/step", "median", "max",
              "over mpi", "communication", "wrong", "bits", "backend");
  nlohmann::json document = bench::empty_document(
      options.command, {{"isthmus", isthmus_version()},
                        {"sycl", device.get_platform().get_info<sycl::info::platform::name>() + " " +
                                     device.get_info<sycl::info::device::driver_version>()},
                        {"mpi", isthmus::mpi::detail::library()}});
  if (!device.is_cpu()) document["machine"]["gpus"].push_back(device.get_info<sycl::info::device::name>());
  for (const outcome& result : outcomes) {
    const char* const name = transport_names()[static_cast<std::size_t>(result.transport)].c_str();
    if (result.samples_us.empty()) {
      std::printf("%-17s verified: %llu wrong\n", name, static_cast<unsigned long long>(result.wrong));
      continue;
    }
    const bench::sample_summary time = bench::summarize(result.samples_us);
    std::printf("%-17s %12.1f %12.1f %12.1f %9.2fx %12.1f %% %6llu %5s  %s\n", name, time.min_us,
                time.median_us, time.max_us, speedup(outcomes, result), 100 * result.communication_share,
                static_cast<unsigned long long>(result.wrong), result.same_bits ? "same" : "other",
                result.backend.c_str());
    if (entry.rate.second)
      std::printf("%-17s %12.0f %s\n", "", rate_of(options, entry, result), entry.rate.first.c_str());
    document["records"].push_back(record_of(options, entry, ranks, outcomes, result));
  }
  bench::write_document(options.json, document);
  if (!options.plot.empty()) draw(options);
}

}  // namespace apps
