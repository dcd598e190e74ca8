// The progress output and the records of the program, in the record format of docs/internals/benchmarks.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cell.hpp"
#include "options.hpp"

namespace sycl_collectives {

// The samples of one path in one cell, each the maximum over ranks, and the wrong elements of all ranks.
struct measurement {
  call_path path;
  std::vector<double> samples_us;
  std::uint64_t wrong = 0;
};

// The backend of a path's calls, and the reason.
struct selected_backend {
  std::string backend;
  std::string reason;
};
selected_backend explain(const isthmus::communicator& ranks, const call_shape& shape);

// The report, used on rank 0 only. Progress goes to standard output: a table, or with --progress json one
// object per line:
//   {"event": "start", "ranks", "cells", "device", "kernels", "paths"}
//   {"event": "cell", "done", "cells", "collective", "bytes", "records": [...]}   as in results.json
//   {"event": "skipped", "done", "cells", "collective", "bytes", "reason"}
//   {"event": "left_out", "collective", "bytes", "provider", "mode", "seconds"}   at larger sizes
//   {"event": "end", "seconds", "wrong", "out"}
class job_report {
 public:
  job_report(const program_options& options, const isthmus::communicator& ranks, std::size_t cells);

  void cell_done(const call_shape& shape, const std::vector<measurement>& measured,
                 const selected_backend& selection);
  void cell_skipped(const call_shape& shape, const std::string& reason);
  // The path is skipped at larger sizes of the collective, because a call took `seconds`.
  void path_skipped(const call_shape& shape, call_path path, double seconds);
  // Writes the file and the summary; throws std::runtime_error on failure.
  void finish(double seconds);
  std::uint64_t wrong() const { return m_wrong; }

 private:
  void write_line(const nlohmann::json& line) const;

  const program_options& m_options;
  std::size_t m_cells;
  std::size_t m_finished_cells = 0;
  std::uint64_t m_wrong = 0;
  std::string m_previous;
  nlohmann::json m_document;
};

}  // namespace sycl_collectives
