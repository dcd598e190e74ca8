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

path_label label(call_path path, bool host_task) {
  switch (path) {
    case call_path::isthmus_usm: return {"isthmus", host_task ? "sycl_usm_task" : "sycl_usm"};
    case call_path::isthmus_host_usm: return {"isthmus", "host_usm"};
    case call_path::isthmus_buffer: return {"isthmus", host_task ? "sycl_buffer_task" : "sycl_buffer"};
    case call_path::isthmus_host: return {"isthmus", "host"};
    case call_path::listing1: return {"listing1", "sycl_buffer"};
    case call_path::mpi_host: return {apps::mpi_family(), "host"};
  }
  return {"", ""};
}

nlohmann::json record_of(const call_shape& shape, const measurement& measured,
                         const selected_backend& selection, bool host_task, double core_us) {
  const path_label label = sycl_collectives::label(measured.path, host_task);
  const double median = bench::median(measured.samples_us);
  nlohmann::json record = bench::record_of(
      {shape.entry.name, "float32", shape.bytes, shape.size, label.provider,
       is_isthmus(measured.path) ? selection.backend : apps::mpi_family(), label.mode},
      measured.samples_us, bench::bandwidth_of(shape.entry.collective, shape.bytes, shape.size, median));
  record["reason"] = is_isthmus(measured.path) ? selection.reason : "plain MPI";
  record["samples"] = measured.samples_us.size();
  record["wrong"] = measured.wrong;
  if (bench::reduces(shape.entry.collective)) record["op"] = "sum";
  const bool through_sycl =
      measured.path == call_path::isthmus_usm || measured.path == call_path::isthmus_buffer;
  if (through_sycl && core_us > 0) record["over_c_api_us"] = median - core_us;  // 0: not on a device
  return record;
}

}  // namespace

selected_backend explain(const isthmus::communicator& ranks, const call_shape& shape) {
  const auto explanation = nlohmann::json::parse(ranks.explain(shape.entry.collective, shape.count));
  const nlohmann::json& selection = explanation.at("selection");
  std::string backend = selection.value("backend", "");
  if (const std::string algorithm = selection.value("algorithm", ""); !algorithm.empty())
    backend += ":" + algorithm;
  return {backend, selection.value("reason", "")};
}

job_report::job_report(const program_options& options, const isthmus::communicator& ranks, std::size_t cells)
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
  for (const call_path path : all_paths)
    paths.push_back(
        {{"provider", label(path, options.host_task).provider}, {"mode", label(path, options.host_task).mode}});
  const nlohmann::json sycl_path = nlohmann::json::parse(ranks.explain(ISTHMUS_BARRIER, 0)).at("sycl");
  if (options.progress_json) {
    write_line({{"event", "start"},
                {"ranks", ranks.size()},
                {"cells", cells},
                {"device", device},
                {"kernels", job_kernels::compilation_mode()},
                {"sycl", sycl_path},
                {"paths", paths}});
    return;
  }
  std::printf("%d ranks on %s; kernels: %s; calls: %s\n", ranks.size(), device.c_str(),
              job_kernels::compilation_mode(), sycl_path.at("reason").get<std::string>().c_str());
}

void job_report::write_line(const nlohmann::json& line) const {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void job_report::cell_done(const call_shape& shape, const std::vector<measurement>& measured,
                           const selected_backend& selection) {
  ++m_finished_cells;
  double core_us = 0;
  for (const measurement& entry : measured) {
    if (entry.path == call_path::isthmus_host_usm) core_us = bench::median(entry.samples_us);
  }
  nlohmann::json records = nlohmann::json::array();
  for (const measurement& entry : measured) {
    records.push_back(record_of(shape, entry, selection, m_options.host_task, core_us));
    m_wrong += entry.wrong;
    m_document["records"].push_back(records.back());
  }
  if (m_options.progress_json) {
    write_line({{"event", "cell"},
                {"done", m_finished_cells},
                {"cells", m_cells},
                {"collective", shape.entry.name},
                {"bytes", shape.bytes},
                {"records", records}});
    return;
  }
  if (m_previous != shape.entry.name) {
    std::printf("\n%-14s %10s  %-9s %-11s %11s %11s %11s %8s %8s %6s  %s\n", "collective", "bytes", "provider",
                "mode", "min us", "median us", "max us", "algbw", "busbw", "wrong", "backend (reason)");
    m_previous = shape.entry.name;
  }
  for (const nlohmann::json& record : records) {
    const nlohmann::json& time = record["time_us"];
    std::printf("%-14s %10llu  %-9s %-11s %11.2f %11.2f %11.2f %8.3f %8.3f %6llu  %s (%s)\n", shape.entry.name,
                static_cast<unsigned long long>(shape.bytes), record["provider"].get<std::string>().c_str(),
                record["mode"].get<std::string>().c_str(), time["min"].get<double>(),
                time["median"].get<double>(), time["max"].get<double>(), record["algbw_gbs"].get<double>(),
                record["busbw_gbs"].get<double>(), record["wrong"].get<unsigned long long>(),
                record["backend"].get<std::string>().c_str(), record["reason"].get<std::string>().c_str());
  }
  std::fflush(stdout);
}

void job_report::cell_skipped(const call_shape& shape, const std::string& reason) {
  ++m_finished_cells;
  if (m_options.progress_json) {
    write_line({{"event", "skipped"},
                {"done", m_finished_cells},
                {"cells", m_cells},
                {"collective", shape.entry.name},
                {"bytes", shape.bytes},
                {"reason", reason}});
    return;
  }
  std::printf("%-14s %10llu  skipped: %s\n", shape.entry.name, static_cast<unsigned long long>(shape.bytes),
              reason.c_str());
}

void job_report::path_skipped(const call_shape& shape, call_path path, double seconds) {
  const path_label label = sycl_collectives::label(path, m_options.host_task);
  if (m_options.progress_json) {
    write_line({{"event", "left_out"},
                {"collective", shape.entry.name},
                {"bytes", shape.bytes},
                {"provider", label.provider},
                {"mode", label.mode},
                {"seconds", seconds}});
    return;
  }
  std::printf("%-14s %10llu  %-9s %-11s left out at larger sizes: a call took %.2f s\n", shape.entry.name,
              static_cast<unsigned long long>(shape.bytes), label.provider, label.mode, seconds);
}

void job_report::finish(double seconds) {
  bench::write_document(m_options.out, m_document);
  if (m_options.progress_json) {
    write_line({{"event", "end"}, {"seconds", seconds}, {"wrong", m_wrong}, {"out", m_options.out}});
    return;
  }
  std::printf("\n%zu cells in %.1f s, %llu wrong elements%s%s\n", m_finished_cells, seconds,
              static_cast<unsigned long long>(m_wrong), m_options.out.empty() ? "" : "; records in ",
              m_options.out.c_str());
}

}  // namespace sycl_collectives
