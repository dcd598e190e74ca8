#include "report.hpp"

#include <cstdio>
#include <stdexcept>

#include "bench/harness/document.hpp"
#include "bench/harness/patterns.hpp"
#include "common/mpi_family.hpp"

namespace sycl_collectives {

namespace {

struct path_label {
  const char* provider;
  const char* mode;
};

path_label label(path taken, bool host_task) {
  switch (taken) {
    case path::isthmus_usm: return {"isthmus", host_task ? "sycl_usm_task" : "sycl_usm"};
    case path::isthmus_buffer: return {"isthmus", host_task ? "sycl_buffer_task" : "sycl_buffer"};
    case path::isthmus_host: return {"isthmus", "host"};
    case path::listing1: return {"listing1", "sycl_buffer"};
    case path::mpi_host: return {apps::mpi_family(), "host"};
  }
  return {"", ""};
}

nlohmann::json record_of(const shape& shape, const measurement& measured, const chosen& chosen, bool host_task,
                         double core_us) {
  const path_label label = sycl_collectives::label(measured.taken, host_task);
  const double median = bench::median(measured.samples_us);
  nlohmann::json record = bench::record_of(
      {shape.what.name, "float32", shape.bytes, shape.size, label.provider,
       is_isthmus(measured.taken) ? chosen.backend : apps::mpi_family(), label.mode},
      measured.samples_us, bench::bandwidth_of(shape.what.collective, shape.bytes, shape.size, median));
  record["reason"] = is_isthmus(measured.taken) ? chosen.reason : "plain MPI";
  record["samples"] = measured.samples_us.size();
  record["wrong"] = measured.wrong;
  if (bench::reduces(shape.what.collective)) record["op"] = "sum";
  const bool through_sycl = measured.taken == path::isthmus_usm || measured.taken == path::isthmus_buffer;
  if (through_sycl && core_us > 0) record["over_c_api_us"] = median - core_us;  // 0: not on a device
  return record;
}

}  // namespace

chosen explain(const isthmus::communicator& ranks, const shape& shape) {
  const auto told = nlohmann::json::parse(ranks.explain(shape.what.collective, shape.count));
  const nlohmann::json& selection = told.at("selection");
  std::string backend = selection.value("backend", "");
  if (const std::string algorithm = selection.value("algorithm", ""); !algorithm.empty())
    backend += ":" + algorithm;
  return {backend, selection.value("reason", "")};
}

report::report(const program_options& options, const isthmus::communicator& ranks, std::size_t cells)
    : m_options(options), m_cells(cells) {
  const std::string device = ranks.device().get_info<sycl::info::device::name>();
  const sycl::platform platform = ranks.device().get_platform();
  m_document = bench::empty_document(
      options.command, {{"isthmus", isthmus_version()},
                      {"sycl", platform.get_info<sycl::info::platform::name>() + " " +
                                   ranks.device().get_info<sycl::info::device::driver_version>()},
                      {"mpi", isthmus::mpi::detail::library()}});
  if (!ranks.device().is_cpu()) m_document["machine"]["gpus"].push_back(device);
  nlohmann::json paths = nlohmann::json::array();
  for (const path taken : all_paths)
    paths.push_back(
        {{"provider", label(taken, options.host_task).provider}, {"mode", label(taken, options.host_task).mode}});
  const nlohmann::json sycl_path = nlohmann::json::parse(ranks.explain(ISTHMUS_BARRIER, 0)).at("sycl");
  if (options.progress_json) {
    say({{"event", "start"},
         {"ranks", ranks.size()},
         {"cells", cells},
         {"device", device},
         {"kernels", kernels::compiled_by()},
         {"sycl", sycl_path},
         {"paths", paths}});
    return;
  }
  std::printf("%d ranks on %s; kernels: %s; calls: %s\n", ranks.size(), device.c_str(), kernels::compiled_by(),
              sycl_path.at("reason").get<std::string>().c_str());
}

void report::say(const nlohmann::json& line) const {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void report::cell_done(const shape& shape, const std::vector<measurement>& measured, const chosen& chosen) {
  ++m_done;
  double core_us = 0;
  for (const measurement& one : measured) {
    if (one.taken == path::isthmus_host) core_us = bench::median(one.samples_us);
  }
  nlohmann::json records = nlohmann::json::array();
  for (const measurement& one : measured) {
    records.push_back(record_of(shape, one, chosen, m_options.host_task, core_us));
    m_wrong += one.wrong;
    m_document["records"].push_back(records.back());
  }
  if (m_options.progress_json) {
    say({{"event", "cell"},
         {"done", m_done},
         {"cells", m_cells},
         {"collective", shape.what.name},
         {"bytes", shape.bytes},
         {"records", records}});
    return;
  }
  if (m_previous != shape.what.name) {
    std::printf("\n%-14s %10s  %-9s %-11s %11s %11s %11s %8s %8s %6s  %s\n", "collective", "bytes", "provider",
                "mode", "min us", "median us", "max us", "algbw", "busbw", "wrong", "backend (reason)");
    m_previous = shape.what.name;
  }
  for (const nlohmann::json& record : records) {
    const nlohmann::json& time = record["time_us"];
    std::printf("%-14s %10llu  %-9s %-11s %11.2f %11.2f %11.2f %8.3f %8.3f %6llu  %s (%s)\n", shape.what.name,
                static_cast<unsigned long long>(shape.bytes), record["provider"].get<std::string>().c_str(),
                record["mode"].get<std::string>().c_str(), time["min"].get<double>(),
                time["median"].get<double>(), time["max"].get<double>(), record["algbw_gbs"].get<double>(),
                record["busbw_gbs"].get<double>(), record["wrong"].get<unsigned long long>(),
                record["backend"].get<std::string>().c_str(), record["reason"].get<std::string>().c_str());
  }
  std::fflush(stdout);
}

void report::cell_skipped(const shape& shape, const std::string& reason) {
  ++m_done;
  if (m_options.progress_json) {
    say({{"event", "skipped"},
         {"done", m_done},
         {"cells", m_cells},
         {"collective", shape.what.name},
         {"bytes", shape.bytes},
         {"reason", reason}});
    return;
  }
  std::printf("%-14s %10llu  skipped: %s\n", shape.what.name, static_cast<unsigned long long>(shape.bytes),
              reason.c_str());
}

void report::path_left_out(const shape& shape, path taken, double seconds) {
  const path_label label = sycl_collectives::label(taken, m_options.host_task);
  if (m_options.progress_json) {
    say({{"event", "left_out"},
         {"collective", shape.what.name},
         {"bytes", shape.bytes},
         {"provider", label.provider},
         {"mode", label.mode},
         {"seconds", seconds}});
    return;
  }
  std::printf("%-14s %10llu  %-9s %-11s left out at larger sizes: a call took %.2f s\n", shape.what.name,
              static_cast<unsigned long long>(shape.bytes), label.provider, label.mode, seconds);
}

void report::finish(double seconds) {
  bench::write_document(m_options.out, m_document);
  if (m_options.progress_json) {
    say({{"event", "end"}, {"seconds", seconds}, {"wrong", m_wrong}, {"out", m_options.out}});
    return;
  }
  std::printf("\n%zu cells in %.1f s, %llu wrong elements%s%s\n", m_done, seconds,
              static_cast<unsigned long long>(m_wrong), m_options.out.empty() ? "" : "; records in ",
              m_options.out.c_str());
}

}  // namespace sycl_collectives
