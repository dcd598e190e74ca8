// Records of one pattern, and the formulas behind their bandwidths.
#pragma once

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "document.hpp"
#include "options.hpp"

namespace bench {

// What a provider says about itself and about one measured size.
struct provider_identity {
  std::string provider;  // "isthmus", "mpich", ...
  std::string version_key, version;
  std::string mode = "host";
};
struct chosen_path {
  std::string backend, reason;  // "" where the provider has no such thing
};

// Bytes that the algorithm bandwidth counts, as nccl-tests does (doc/PERFORMANCE.md there): the larger of
// the send and the receive buffer. Only allgather's `bytes` of the records, bytes per rank, differs.
inline double counted_bytes(pattern what, double bytes, int ranks) {
  return what == pattern::allgather ? bytes * ranks : bytes;
}

// Bus bandwidth over algorithm bandwidth, the factors of nccl-tests (doc/PERFORMANCE.md there).
inline double bus_factor(pattern what, int ranks) {
  const double n = ranks;
  switch (what) {
    case pattern::allreduce: return 2 * (n - 1) / n;
    case pattern::reduce_scatter:
    case pattern::allgather:
    case pattern::gather:
    case pattern::scatter:
    case pattern::alltoall: return (n - 1) / n;
    case pattern::broadcast:
    case pattern::reduce:
    case pattern::sendrecv:
    case pattern::ping: return 1;
    case pattern::barrier: return 0;
  }
  return 0;
}

class report {
 public:
  report(const options& asked, provider_identity identity, int ranks)
      : m_asked(asked),
        m_identity(std::move(identity)),
        m_ranks(ranks),
        m_document(empty_document(asked.command, {{m_identity.version_key, m_identity.version}})) {}

  void print_header() const {
    std::printf("# %s %s, %s%s%s, %d ranks, %s\n", m_identity.provider.c_str(), m_asked.collective.c_str(),
                datatype_name().c_str(), reduces(m_asked.what) ? " " : "",
                reduces(m_asked.what) ? op_name().c_str() : "", m_ranks, m_identity.version.c_str());
    std::printf("%12s %10s %12s %12s %12s %9s %9s %7s  %s\n", "bytes", "samples", "min us", "median us",
                "max us", "algbw", "busbw", "wrong", "backend");
  }

  void add(std::uint64_t bytes, const std::vector<double>& samples_us, std::uint64_t wrong,
           const chosen_path& path) {
    const sample_summary time = summarise(samples_us);
    const double algbw =
        counted_bytes(m_asked.what, static_cast<double>(bytes), m_ranks) / time.median_us / 1e3;
    const double busbw = algbw * bus_factor(m_asked.what, m_ranks);
    nlohmann::json record = {{"collective", m_asked.collective},
                             {"dtype", datatype_name()},
                             {"bytes", bytes},
                             {"ranks", m_ranks},
                             {"provider", m_identity.provider},
                             {"backend", path.backend},
                             {"reason", path.reason},
                             {"mode", m_identity.mode},
                             {"samples", samples_us.size()},
                             {"time_us", time_us(time)},
                             {"algbw_gbs", algbw},
                             {"busbw_gbs", busbw}};
    if (reduces(m_asked.what)) record["op"] = op_name();
    if (m_asked.check) record["wrong"] = wrong;
    m_document["records"].push_back(std::move(record));
    if (!m_asked.quiet) {
      std::printf("%12llu %10zu %12.3f %12.3f %12.3f %9.3f %9.3f %7s  %s\n",
                  static_cast<unsigned long long>(bytes), samples_us.size(), time.min_us, time.median_us,
                  time.max_us, algbw, busbw, m_asked.check ? std::to_string(wrong).c_str() : "-",
                  path.backend.c_str());
      std::fflush(stdout);
    }
  }

  // A record that the caller made.
  void add_record(nlohmann::json record) { m_document["records"].push_back(std::move(record)); }

  void write() const {
    if (m_asked.json.empty()) return;
    std::ofstream file(m_asked.json);
    file << m_document.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + m_asked.json);
  }

 private:
  const std::string& datatype_name() const { return datatype_names()[m_asked.datatype]; }
  const std::string& op_name() const { return op_names()[m_asked.op]; }

  const options& m_asked;
  provider_identity m_identity;
  int m_ranks;
  nlohmann::json m_document;
};

}  // namespace bench
