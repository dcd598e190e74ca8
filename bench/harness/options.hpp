// Options of a benchmark program; the command line is the same for every provider.
#pragma once

#include <isthmus/types.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "command.hpp"
#include "patterns.hpp"

namespace bench {

inline const std::vector<std::string>& datatype_names() {
  static const std::vector<std::string> names = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) #name,
#include <isthmus/collectives.def>
  };
  return names;
}

inline const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = {
#define ISTHMUS_REDUCTION_OP(name, NAME) #name,
#include <isthmus/collectives.def>
  };
  return names;
}

struct options {
  std::vector<traffic_pattern> patterns;                 // all that are measured, in this order
  traffic_pattern pattern = traffic_pattern::allreduce;  // of the current measurement
  std::vector<std::uint64_t> sizes;
  std::uint64_t max_buffer_bytes = UINT64_MAX;  // sizes that need a larger buffer on a rank are left out
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  isthmus_reduction_op op = ISTHMUS_SUM;
  std::uint64_t seed = 1;
  std::string json;  // an empty path writes no file
  bool check = true;
  double min_time_s = 0.05;  // measured time per size, including input generation and barriers
  int min_samples = 5;
  int max_samples = 2000;
  double timeout_s = 120;
  std::string provider;  // label in the records; "" means that of the program
  std::string command;
  bool quiet = false;
};

// Adds the shared options to `app`. Call finish() after parsing.
class command_line {
 public:
  command_line(CLI::App& app, options& result) : m_result(result) {
    std::vector<std::string> collectives;
    for (const pattern_row& row : pattern_rows()) collectives.push_back(row.name);
    app.add_option("collective", m_collectives, "what to measure: a name or a list of names")
        ->delimiter(',')
        ->check(CLI::IsMember(collectives));
    app.add_option("--sizes", m_sizes, "bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
        ->capture_default_str();
    app.add_option("--max-buffer", m_max_buffer, "leave out sizes that need a larger buffer on a rank");
    app.add_option("--dtype", m_datatype, "element type")
        ->check(CLI::IsMember(datatype_names()))
        ->capture_default_str();
    app.add_option("--op", m_op, "reduction")->check(CLI::IsMember(op_names()))->capture_default_str();
    app.add_option("--seed", m_result.seed, "seed of the random inputs")->capture_default_str();
    app.add_option("--json", m_result.json, "write the records to this file");
    app.add_flag("--check,!--no-check", m_result.check, "verify results before and after timing");
    app.add_option("--min-time", m_result.min_time_s, "seconds per size")->capture_default_str();
    app.add_option("--min-samples", m_result.min_samples, "minimum calls per size")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--max-samples", m_result.max_samples, "maximum calls per size")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--timeout", m_result.timeout_s, "seconds to wait for the other ranks")
        ->capture_default_str();
    app.add_option("--provider", m_result.provider, "label in the records");
    app.add_flag("--quiet", m_result.quiet, "print no table");
  }

  // Errors: throws CLI::ParseError.
  void finish(const std::string& command) {
    if (m_collectives.empty()) throw CLI::RequiredError("collective");
    for (const std::string& name : m_collectives)
      for (const pattern_row& row : pattern_rows())
        if (row.name == name) m_result.patterns.push_back(row.pattern);
    m_result.datatype = static_cast<isthmus_datatype>(index_of(datatype_names(), m_datatype));
    m_result.op = static_cast<isthmus_reduction_op>(index_of(op_names(), m_op));
    m_result.sizes = parse_sizes(m_sizes);
    if (!m_max_buffer.empty()) m_result.max_buffer_bytes = parse_bytes(m_max_buffer);
    if (m_result.max_samples < m_result.min_samples) m_result.max_samples = m_result.min_samples;
    m_result.command = command;
  }

 private:
  static std::size_t index_of(const std::vector<std::string>& names, const std::string& name) {
    std::size_t index = 0;
    while (names[index] != name) ++index;  // the parser has checked membership
    return index;
  }

  options& m_result;
  std::vector<std::string> m_collectives;
  std::string m_sizes = "8:128M", m_max_buffer;
  std::string m_datatype = "float32";
  std::string m_op = "sum";
};

}  // namespace bench
