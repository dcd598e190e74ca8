// Collects, prints and writes the records of a measurement.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "document.hpp"
#include "options.hpp"

namespace bench {

// Name, version and mode of a provider, and the path that it selected for one size.
struct provider_identity {
  std::string provider;  // "isthmus", "mpich", ...
  std::string version_key, version;
  std::string mode = "host";
};
struct chosen_path {
  std::string backend, reason;  // "" if the provider does not report them
};

class report {
 public:
  report(const options& settings, provider_identity identity, int ranks, std::string placement = "any")
      : m_settings(settings),
        m_identity(std::move(identity)),
        m_ranks(ranks),
        m_placement(std::move(placement)),
        m_document(empty_document(settings.command, {{m_identity.version_key, m_identity.version}})) {}

  void print_header() const {
    std::printf("# %s %s, %s%s%s, %d ranks, %s\n", m_identity.provider.c_str(),
                name_of(m_settings.pattern).c_str(), datatype_name().c_str(),
                reduces(collective_of(m_settings.pattern)) ? " " : "",
                reduces(collective_of(m_settings.pattern)) ? op_name().c_str() : "", m_ranks,
                m_identity.version.c_str());
    std::printf("%12s %10s %12s %12s %12s %9s %9s %7s  %s\n", "bytes", "samples", "min us", "median us",
                "max us", "algbw", "busbw", "wrong", "backend");
  }

  void add(std::uint64_t bytes, const std::vector<double>& samples_us, std::uint64_t wrong,
           const chosen_path& path, double run_delay_us) {
    const sample_summary time = summarize(samples_us);
    const bandwidth rate = bandwidth_of(collective_of(m_settings.pattern), bytes, m_ranks, time.median_us);
    nlohmann::json record = record_of({name_of(m_settings.pattern), datatype_name(), bytes, m_ranks,
                                       m_identity.provider, path.backend, m_identity.mode},
                                      samples_us, rate);
    record["reason"] = path.reason;
    record["samples"] = samples_us.size();
    record["placement"] = m_placement;
    record["run_delay_us"] = run_delay_us;
    if (reduces(collective_of(m_settings.pattern))) record["op"] = op_name();
    if (m_settings.check) record["wrong"] = wrong;
    m_document["records"].push_back(std::move(record));
    if (!m_settings.quiet) {
      std::printf("%12llu %10zu %12.3f %12.3f %12.3f %9.3f %9.3f %7s  %s\n",
                  static_cast<unsigned long long>(bytes), samples_us.size(), time.min_us, time.median_us,
                  time.max_us, rate.algbw_gbs, rate.busbw_gbs,
                  m_settings.check ? std::to_string(wrong).c_str() : "-", path.backend.c_str());
      std::fflush(stdout);
    }
  }

  // Adds a record that the caller created.
  void add_record(nlohmann::json record) { m_document["records"].push_back(std::move(record)); }

  void write() const { write_document(m_settings.json, m_document); }
  const nlohmann::json& document() const { return m_document; }

 private:
  const std::string& datatype_name() const { return datatype_names()[m_settings.datatype]; }
  const std::string& op_name() const { return op_names()[m_settings.op]; }

  const options& m_settings;
  provider_identity m_identity;
  int m_ranks;
  std::string m_placement;
  nlohmann::json m_document;
};

}  // namespace bench
