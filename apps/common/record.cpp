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

// Over the paper's Listing 1 in the same run, where it took part.
double speedup(const std::vector<outcome>& all, const outcome& one) {
  for (const outcome& other : all)
    if (other.transport == transport_kind::mpi && !other.samples_us.empty())
      return bench::median(other.samples_us) / bench::median(one.samples_us);
  return 0;
}

double rate_of(const program_options& options, const application_entry& entry, const outcome& one) {
  return entry.rate.second(options) / (1e-6 * bench::median(one.samples_us));
}

nlohmann::json record_of(const program_options& options, const application_entry& entry, int ranks,
                         const std::vector<outcome>& all, const outcome& one) {
  const bool is_mpi = one.transport == transport_kind::mpi;
  nlohmann::json record =
      bench::record_of({entry.name, entry.dtype, one.message_bytes, ranks, is_mpi ? "listing1" : "isthmus",
                        one.backend, mode_of(one.transport)},
                       one.samples_us, {});
  record["size"] = options.size;
  record["scaling"] = options.scaling;
  record["steps"] = options.steps;
  record["samples"] = one.samples_us.size();
  record["wrong"] = one.wrong;
  record["same_bits"] = one.same_bits;
  record["communication_us"] = one.communication_us;
  record["communication_share"] = one.communication_share;
  if (const double faster = speedup(all, one); faster > 0) record["speedup_over_listing1"] = faster;
  for (const auto& [name, value] : entry.settings(options)) record[name] = value;
  if (entry.rate.second) record[entry.rate.first] = rate_of(options, entry, one);
  return record;
}

// A program of its own: pictures and pages are the Python package's.
void draw(const program_options& options) {
  std::string words[] = {"isthmus", "report", options.json, "--out", options.plot};
  char* arguments[std::size(words) + 1] = {};
  for (std::size_t i = 0; i < std::size(words); ++i) arguments[i] = words[i].data();
  std::fflush(nullptr);
  pid_t drawer = 0;
  int status = 1;
  if (posix_spawnp(&drawer, arguments[0], nullptr, nullptr, arguments, environ) != 0 ||
      waitpid(drawer, &status, 0) < 0 || status != 0)
    throw std::runtime_error("--plot: isthmus report could not draw " + options.plot + "; the records are in " +
                             options.json);
}

}  // namespace

void report_outcomes(const program_options& options, const application_entry& entry, const sycl::device& device, int ranks,
          const std::vector<outcome>& outcomes) {
  std::printf("%s %llu x %llu x %llu, %d ranks on %s; kernels: %s\n", entry.name,
              static_cast<unsigned long long>(options.size[0]), static_cast<unsigned long long>(options.size[1]),
              static_cast<unsigned long long>(options.size[2]), ranks,
              device.get_info<sycl::info::device::name>().c_str(), launcher::compiled_by());
  std::printf("%-17s %12s %12s %12s %10s %14s %6s %5s  %s\n", "transport", "min us/step", "median", "max",
              "over mpi", "communication", "wrong", "bits", "backend");
  nlohmann::json document = bench::empty_document(
      options.command, {{"isthmus", isthmus_version()},
                      {"sycl", device.get_platform().get_info<sycl::info::platform::name>() + " " +
                                   device.get_info<sycl::info::device::driver_version>()},
                      {"mpi", isthmus::mpi::detail::library()}});
  if (!device.is_cpu()) document["machine"]["gpus"].push_back(device.get_info<sycl::info::device::name>());
  for (const outcome& one : outcomes) {
    const char* const name = transport_names()[static_cast<std::size_t>(one.transport)].c_str();
    if (one.samples_us.empty()) {
      std::printf("%-17s verified: %llu wrong\n", name, static_cast<unsigned long long>(one.wrong));
      continue;
    }
    const bench::sample_summary time = bench::summarize(one.samples_us);
    std::printf("%-17s %12.1f %12.1f %12.1f %9.2fx %12.1f %% %6llu %5s  %s\n", name, time.min_us,
                time.median_us, time.max_us, speedup(outcomes, one), 100 * one.communication_share,
                static_cast<unsigned long long>(one.wrong), one.same_bits ? "same" : "other",
                one.backend.c_str());
    if (entry.rate.second)
      std::printf("%-17s %12.0f %s\n", "", rate_of(options, entry, one), entry.rate.first.c_str());
    document["records"].push_back(record_of(options, entry, ranks, outcomes, one));
  }
  bench::write_document(options.json, document);
  if (!options.plot.empty()) draw(options);
}

}  // namespace apps
