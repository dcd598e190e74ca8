// Common content of all record files (format: docs/internals/benchmarks.md).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

struct sample_summary {
  double min_us, median_us, max_us;
};

inline sample_summary summarize(std::vector<double> samples_us) {
  std::sort(samples_us.begin(), samples_us.end());
  const std::size_t middle = samples_us.size() / 2;
  const double median =
      samples_us.size() % 2 ? samples_us[middle] : (samples_us[middle - 1] + samples_us[middle]) / 2;
  return {samples_us.front(), median, samples_us.back()};
}

inline nlohmann::json time_us(const sample_summary& time) {
  return {{"min", time.min_us}, {"median", time.median_us}, {"max", time.max_us}};
}

inline double median(const std::vector<double>& samples_us) { return summarize(samples_us).median_us; }
inline nlohmann::json spread(const std::vector<double>& samples_us) { return time_us(summarize(samples_us)); }

struct bandwidth {
  double algbw_gbs = 0, busbw_gbs = 0;  // 0: not applicable
};

// Fields of every record; topics add their own.
struct record_point {
  std::string collective, dtype;
  std::uint64_t bytes;
  int ranks;
  std::string provider, backend, mode;
};

inline nlohmann::json record_of(const record_point& point, const std::vector<double>& samples_us,
                                const bandwidth& rate) {
  return {{"collective", point.collective},
          {"dtype", point.dtype},
          {"bytes", point.bytes},
          {"ranks", point.ranks},
          {"provider", point.provider},
          {"backend", point.backend},
          {"mode", point.mode},
          {"time_us", spread(samples_us)},
          {"algbw_gbs", rate.algbw_gbs},
          {"busbw_gbs", rate.busbw_gbs}};
}

inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

inline std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

inline std::string environment(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value ? value : fallback;
}

// A program cannot know the commit, the name of the machine and the command that the user typed. The launcher
// passes them in ISTHMUS_BENCH_COMMIT, ISTHMUS_BENCH_MACHINE and ISTHMUS_BENCH_COMMAND.
inline nlohmann::json empty_document(const std::string& command, nlohmann::json versions) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return {{"schema", 1},
          {"date", utc_now()},
          {"commit", environment("ISTHMUS_BENCH_COMMIT", "")},
          {"command", environment("ISTHMUS_BENCH_COMMAND", command)},
          {"machine",
           {{"name", environment("ISTHMUS_BENCH_MACHINE", "cpu" + std::to_string(cores))},
            {"cpu", cpu_name()},
            {"cores", cores},
            {"gpus", nlohmann::json::array()}}},
          {"versions", std::move(versions)},
          {"records", nlohmann::json::array()}};
}

// An empty path writes no file.
inline void write_document(const std::string& path, const nlohmann::json& document) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << document.dump(1) << '\n';
  if (!file.flush())
    throw std::runtime_error("cannot write " + path + "; check that its folder exists and has space");
}

inline void write_records(const std::string& path, const std::string& command, nlohmann::json versions,
                          nlohmann::json records) {
  nlohmann::json document = empty_document(command, std::move(versions));
  document["records"] = std::move(records);
  write_document(path, document);
}

}  // namespace bench
